# SPDX-License-Identifier: MIT
"""Makes sure that what is measured is an agent that decides, and decides where it should."""

from __future__ import annotations

import wire
from load import Load
from servers import BenchError


def check_decision(reply_hex: str, source: str) -> None:
    """Holds an agent's reply against `[1, msgid, nil, [true, ..., "ok", source, ...]]`."""
    reply = wire.decode_hex(reply_hex)
    decision = reply[3] if isinstance(reply, list) and len(reply) == 4 and reply[0] == 1 else None
    if not isinstance(decision, list) or len(decision) < 10 or decision[0] is not True or decision[5] != "ok":
        raise BenchError(f"the agent does not answer decisions: {reply!r}")
    if decision[6] != source:
        raise BenchError(f"the agent answered from {decision[6]!r}, not from {source!r}: {reply!r}")


def all_allowed(load: Load) -> int:
    """All queries of a run that may pass, with the one that loadgen asks beforehand for --first-reply."""
    return load.total_allowed + int(wire.decode_hex(load.first_reply)[3][0])
