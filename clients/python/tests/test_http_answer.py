# SPDX-License-Identifier: MIT
"""Decisions as header fields, read back by a parser of structured fields."""

from __future__ import annotations

import json

import pytest

from allowd import Decision
from allowd.decision import allowed_by_policy, refused_by_policy
from allowd.http_answer import limit_headers, refusal, retry_after

http_sfv = pytest.importorskip("http_sfv")


def decision(
    allowed=True,
    limit=200,
    remaining=50,
    retry_after_us=0,
    reset_after_us=1_500_001,
    verdict="ok",
    source="local",
    tier="",
    window_us=2_000_000,
    more_after_us=29_000_001,
):
    return Decision(
        allowed,
        limit,
        remaining,
        retry_after_us,
        reset_after_us,
        verdict,
        source,
        tier,
        window_us,
        more_after_us,
    )


def parsed(text: str) -> list:
    """The items of a list field, each as its value and its parameters."""
    field = http_sfv.List()
    field.parse(text.encode("ascii"))
    return [(item.value, dict(item.params)) for item in field]


def test_the_fields_of_the_draft():
    assert limit_headers("api", decision(), "draft") == [
        ("RateLimit-Policy", '"api";q=200;w=2'),
        ("RateLimit", '"api";r=50;t=30'),
    ]


def test_the_older_fields_count_seconds_from_now():
    assert limit_headers("api", decision(), "legacy") == [
        ("X-RateLimit-Limit", "200"),
        ("X-RateLimit-Remaining", "50"),
        ("X-RateLimit-Reset", "2"),
    ]


def test_both_and_neither():
    both = limit_headers("api", decision(), "both")
    assert both == limit_headers("api", decision(), "draft") + limit_headers("api", decision(), "legacy")
    assert limit_headers("api", decision(), "off") == []


@pytest.mark.parametrize(
    "us, seconds", [(1, 1), (999_999, 1), (1_000_000, 1), (1_000_001, 2), (10**18, 10**12)]
)
def test_windows_and_waits_are_whole_seconds_rounded_up(us, seconds):
    fields = dict(limit_headers("api", decision(window_us=us, more_after_us=us), "draft"))
    assert parsed(fields["RateLimit-Policy"]) == [("api", {"q": 200, "w": seconds})]
    assert parsed(fields["RateLimit"]) == [("api", {"r": 50, "t": seconds})]


def test_a_full_tier_has_no_more_to_come():
    fields = dict(limit_headers("api", decision(remaining=200, more_after_us=0), "draft"))
    assert parsed(fields["RateLimit"]) == [("api", {"r": 200})]


def test_numbers_that_no_structured_field_holds_are_cut():
    fields = dict(limit_headers("api", decision(limit=2**63, remaining=2**63, more_after_us=2**64), "draft"))
    assert parsed(fields["RateLimit-Policy"])[0][1]["q"] == 10**15 - 1
    assert parsed(fields["RateLimit"])[0][1]["r"] == 10**15 - 1


def test_of_several_tiers_the_policy_is_the_one_that_decided():
    fields = dict(limit_headers("login", decision(tier="day"), "draft"))
    assert parsed(fields["RateLimit"])[0][0] == "login/day"


@pytest.mark.parametrize(
    "name, sent",
    [
        ('say "hi"', 'say "hi"'),
        ("back\\slash", "back\\slash"),
        ("a;b=1, c", "a;b=1, c"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("line\r\nSet-Cookie: x", "line%0D%0ASet-Cookie: x"),
        ("100%", "100%25"),
        ("\udcff", "%FF"),
        ("", ""),
    ],
)
def test_a_name_is_quoted_and_what_is_not_ascii_is_percent_encoded(name, sent):
    for _, text in limit_headers(name, decision(), "draft"):
        assert parsed(text)[0][0] == sent


@pytest.mark.parametrize(
    "numberless",
    [
        allowed_by_policy(),
        refused_by_policy(1_000_000),
        decision(limit=0, remaining=0),  # an override "unlimited"
        decision(allowed=False, limit=0, remaining=0, verdict="unavailable", retry_after_us=1),
    ],
    ids=["open", "closed", "unlimited", "unavailable"],
)
def test_nothing_is_said_where_no_number_is_known(numberless):
    assert limit_headers("api", numberless, "both") == []


def test_a_limit_of_zero_that_refuses_is_told():
    denied = decision(
        allowed=False, limit=0, remaining=0, retry_after_us=-1, verdict="never", window_us=0, more_after_us=0
    )
    fields = dict(limit_headers("api", denied, "draft"))
    assert parsed(fields["RateLimit-Policy"]) == [("api", {"q": 0})]
    assert parsed(fields["RateLimit"]) == [("api", {"r": 0})]


def test_unavailable_with_numbers_is_told():
    assert limit_headers("api", decision(allowed=False, verdict="unavailable"), "draft")


@pytest.mark.parametrize(
    "verdict, retry_after_us, more_after_us, seconds",
    [
        ("limited", 1, 1, 1),
        ("limited", 1_000_000, 0, 1),
        ("limited", 1_000_001, 0, 2),
        ("limited", 1_000_000, 4_500_000, 5),
        ("limited", 0, 0, 1),
        ("never", -1, 4_500_000, None),
        ("unavailable", 1_200_000, 0, 2),
        ("unavailable", 0, 0, None),
    ],
)
def test_retry_after_is_at_least_a_second_and_not_before_there_is_more(
    verdict, retry_after_us, more_after_us, seconds
):
    refused = decision(
        allowed=False, verdict=verdict, retry_after_us=retry_after_us, more_after_us=more_after_us
    )
    assert retry_after(refused) == seconds
    assert dict(refusal("api", refused).headers).get("Retry-After") == (seconds and str(seconds))


def test_a_refusal_is_a_problem_document():
    status, headers, body = refusal(
        "größe",
        decision(allowed=False, verdict="limited", retry_after_us=1_500_000, tier="day", more_after_us=0),
    )
    assert status == 429
    assert dict(headers) == {
        "Content-Type": "application/problem+json",
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        "Retry-After": "2",
    }
    assert json.loads(body) == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "Try again in 2 s.",
        "violated-policies": ["größe/day"],
    }


def test_a_request_that_nobody_could_decide_is_another_problem():
    for undecided in (refused_by_policy(1_000_000), decision(allowed=False, verdict="unavailable")):
        status, _, body = refusal("api", undecided)
        assert status == json.loads(body)["status"] == 503
        assert json.loads(body)["type"].endswith("#temporary-reduced-capacity")


def test_a_verdict_of_tomorrow_is_a_429():
    assert refusal("api", decision(allowed=False, verdict="banned")).status == 429
