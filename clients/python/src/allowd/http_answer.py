# SPDX-License-Identifier: MIT
"""A decision as HTTP tells it: header fields, status and body. No framework, no I/O.

The fields are those of draft-ietf-httpapi-ratelimit-headers-10, in structured fields (RFC 9651), or the
older X-RateLimit ones, whose Reset is in seconds from now.
"""

from __future__ import annotations

import json
from typing import Dict, List, NamedTuple, Optional, Tuple

from .decision import Decision

HEADER_STYLES = ("draft", "legacy", "both", "off")

_LARGEST_INTEGER = 999_999_999_999_999  # of structured fields
_PROBLEM = "https://iana.org/assignments/http-problem-types#"

Header = Tuple[str, str]


class Refusal(NamedTuple):
    """The default answer to a refused request."""

    status: int
    headers: List[Header]
    body: bytes


def limit_headers(name: str, decision: Decision, style: str) -> List[Header]:
    """What tells of the limit, allowed or refused. Nothing where no number is known, or none applies.

    ``name`` is the limit's; the policy is called after it and, of several tiers, after the one that decided.
    """
    if style == "off" or not _has_numbers(decision):
        return []
    policy = f"{name}/{decision.tier}" if decision.tier else name
    headers: List[Header] = []
    if style in ("draft", "both"):
        quoted = _sf_string(policy)
        window = f";w={_seconds(decision.window_us)}" if decision.window_us > 0 else ""
        # Of a full tier nothing more comes.
        more = f";t={_seconds(decision.more_after_us)}" if decision.more_after_us > 0 else ""
        headers += [
            ("RateLimit-Policy", f"{quoted};q={_sf_integer(decision.limit)}{window}"),
            ("RateLimit", f"{quoted};r={_sf_integer(decision.remaining)}{more}"),
        ]
    if style in ("legacy", "both"):
        headers += [
            ("X-RateLimit-Limit", str(decision.limit)),
            ("X-RateLimit-Remaining", str(decision.remaining)),
            ("X-RateLimit-Reset", str(_seconds(decision.reset_after_us))),
        ]
    return headers


def status_of(decision: Decision) -> int:
    """Of a refused request: 503 if nobody could decide, else 429."""
    return 503 if decision.verdict == "unavailable" else 429


def retry_after(decision: Decision) -> Optional[int]:
    """Whole seconds for Retry-After, at least 1 and not before there is more quota; None for never."""
    if decision.retry_after_us < 0:
        return None
    if decision.retry_after_us == 0 and status_of(decision) == 503:
        return None  # not known
    return max(1, _seconds(decision.retry_after_us), _seconds(decision.more_after_us))


def refusal(name: str, decision: Decision) -> Refusal:
    """Status, headers (without those of the limit) and a problem document (RFC 9457)."""
    status = status_of(decision)
    seconds = retry_after(decision)
    if status == 503:
        problem: Dict[str, object] = {
            "type": _PROBLEM + "temporary-reduced-capacity",
            "title": "Request cannot be satisfied due to temporary server capacity constraints",
            "status": status,
            "detail": "It cannot be decided now whether this request may pass.",
        }
    else:
        problem = {
            "type": _PROBLEM + "quota-exceeded",
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": status,
            "detail": ("This request will never pass." if seconds is None else f"Try again in {seconds} s."),
            "violated-policies": [f"{name}/{decision.tier}" if decision.tier else name],
        }
    body = json.dumps(problem).encode("ascii")
    headers = [
        ("Content-Type", "application/problem+json"),
        ("Content-Length", str(len(body))),
        ("Cache-Control", "no-store"),
    ]
    if seconds is not None:
        headers.append(("Retry-After", str(seconds)))
    return Refusal(status, headers, body)


def _has_numbers(decision: Decision) -> bool:
    # Nor has a degraded one: it is allowed, or unavailable, with a limit of 0.
    return decision.limit > 0 or (not decision.allowed and decision.verdict != "unavailable")


def _seconds(us: int) -> int:
    """Rounded up, so that who waits so long has waited long enough."""
    return _sf_integer(-(-us // 1_000_000))


def _sf_integer(value: int) -> int:
    return min(value, _LARGEST_INTEGER)


def _sf_string(text: str) -> str:
    """Quoted. A structured field has ASCII alone, so the rest is percent-encoded, and "%" with it."""
    octets = text.encode("utf-8", "surrogateescape")
    return '"' + "".join(_SF_CHARACTERS[octet] for octet in octets) + '"'


def _sf_character(octet: int) -> str:
    character = chr(octet)
    if character in '"\\':
        return "\\" + character
    return character if 0x20 <= octet <= 0x7E and character != "%" else f"%{octet:02X}"


_SF_CHARACTERS = [_sf_character(octet) for octet in range(256)]
