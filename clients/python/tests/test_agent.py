# SPDX-License-Identifier: MIT
"""The clients against the real agent: set ALLOWD_BIN to the daemon's binary."""

from __future__ import annotations

import time

import pytest
from fake_agent import PATIENCE
from on_a_loop import OnALoop
from real_agent import RealAgent, needs_the_daemon

import allowd

pytestmark = needs_the_daemon

LIMITS = """
[limits.api]
rate = "10/s"
burst = 10

[limits.slow]
rate = "1/day"
burst = 3

[limits.returnable]
rate = "1/day"
burst = 3
refund = true
"""


@pytest.fixture
def daemon(tmp_path) -> str:
    """The socket path of a running daemon with the limits above."""
    with RealAgent(tmp_path, LIMITS) as agent:
        yield agent.path


@pytest.fixture(params=[allowd.Client, OnALoop], ids=["blocking", "asyncio"])
def client(request, daemon):
    # Fails closed, so that a decision which the agent did not make is never taken for "allowed".
    with request.param(daemon, timeout=PATIENCE, fail="closed") as client:
        yield client


def test_a_full_bucket_allows_its_burst_and_then_denies(client):
    decisions = [client.allow("slow", "burst") for _ in range(4)]
    assert [decision.allowed for decision in decisions] == [True, True, True, False]
    assert [decision.remaining for decision in decisions] == [2, 1, 0, 0]
    assert {decision.limit for decision in decisions} == {3}
    assert {decision.source for decision in decisions} == {"local"}
    assert not any(decision.degraded for decision in decisions)
    denied = decisions[3]
    assert denied.verdict == "limited"
    assert 80_000 < denied.retry_after <= 86_400
    assert denied.reset_after_us >= denied.retry_after_us
    assert denied.window == 3 * 86_400


def test_denied_comes_back_after_retry_after(client):
    decision = client.allow("api", "comes back")
    while decision:
        decision = client.allow("api", "comes back")
    assert 0 < decision.retry_after <= 0.1
    time.sleep(decision.retry_after)
    assert client.allow("api", "comes back").allowed


def test_a_cost_above_the_burst_never_passes(client):
    decision = client.allow("slow", "never", 4)
    assert (decision.allowed, decision.verdict, decision.retry_after) == (False, "never", None)


def test_peek_charges_nothing(client):
    for _ in range(5):
        decision = client.peek("slow", "peek", 2)
        assert decision.allowed
        assert decision.remaining == 3
    assert client.allow("slow", "peek", 3).allowed
    assert not client.peek("slow", "peek").allowed


def test_keys_are_counted_apart_and_a_key_is_its_bytes(client):
    assert client.allow("slow", "one", 3).allowed
    assert client.allow("slow", "two", 3).allowed
    assert not client.allow("slow", b"one").allowed


def test_an_inline_limit_belongs_to_the_application(client):
    limit = {"name": "checkout", "rate": "1/day", "burst": 2}
    assert [client.allow(limit, "k").allowed for _ in range(3)] == [True, True, False]
    assert client.allow(limit, "other").limit == 2


def test_a_batch_is_decided_item_by_item(client):
    decisions = client.allow_batch(
        [("slow", "batch", 2), ("slow", "batch", 2), ("slow", "batch", 1), ("api", "batch", 1)]
    )
    assert [decision.allowed for decision in decisions] == [True, False, True, True]
    assert [decision.limit for decision in decisions] == [3, 3, 3, 10]


def test_the_largest_batch_is_answered(client):
    decisions = client.allow_batch([("api", f"large-{i}", 1) for i in range(1024)])
    assert sum(decision.allowed and not decision.degraded for decision in decisions) == 1024


def test_many_are_decided_each_by_itself_or_all_or_none(client):
    items = [("slow", "many", 2), ("slow", "many", 2), ({"name": "own", "rate": "1/day"}, "many", 1)]
    assert [decision.allowed for decision in client.allow_many(items)] == [True, False, True]
    all_or_none = [("slow", "many", 1), ("slow", "none", 4)]
    refused = client.allow_many(all_or_none, "all")
    assert [decision.verdict for decision in refused] == ["ok", "never"]
    assert client.peek("slow", "many").remaining == 1, "it was not charged"
    passed = client.allow_many([("slow", "many", 1), ("slow", "none", 3)], "all")
    assert [(decision.allowed, decision.remaining) for decision in passed] == [(True, 0), (True, 0)]


def test_the_most_of_many_are_answered(client):
    decisions = client.allow_many([("api", f"many-{i}", 1) for i in range(256)])
    assert sum(decision.allowed and not decision.degraded for decision in decisions) == 256


def test_an_unknown_limit_among_many_charges_nothing(client):
    with pytest.raises(allowd.AgentError) as caught:
        client.allow_many([("slow", "mistaken", 1), ("no-such-limit", "k", 1)], "all")
    assert caught.value.code == "unknown_limit"
    assert client.peek("slow", "mistaken").remaining == 3


def test_a_refund_gives_back_what_was_taken_and_no_more(client):
    assert client.allow("returnable", "r", 3).remaining == 0
    assert client.refund("returnable", "r", 2).remaining == 2
    assert client.refund("returnable", "r", 2).remaining == 3
    with pytest.raises(allowd.AgentError) as caught:
        client.refund("slow", "r")
    assert caught.value.code == "forbidden"


def test_an_unknown_limit_is_the_callers_mistake(client):
    with pytest.raises(allowd.AgentError) as caught:
        client.allow("no-such-limit", "k")
    assert caught.value.code == "unknown_limit"
    assert client.ping()


def test_a_bad_argument_is_the_callers_mistake(client):
    for arguments, code in (
        (("api", "k", -1), "bad_request"),
        (({"name": "x", "rate": "soon"}, "k"), "bad_request"),
        (("api", "k" * 1025), "too_large"),
    ):
        with pytest.raises(allowd.AgentError) as caught:
            client.allow(*arguments)
        assert caught.value.code == code
    assert client.ping()


def test_in_a_batch_an_unknown_limit_leaves_the_others_decided(client):
    with pytest.raises(allowd.AgentError) as caught:
        client.allow_batch([("slow", "mixed", 1), ("no-such-limit", "k", 1), ("slow", "mixed", 1)])
    assert caught.value.index == 1
    assert [decision and decision.remaining for decision in caught.value.decisions] == [2, None, 1]


def test_ping(client):
    assert client.ping() is True


def test_info_tells_of_the_agent_and_its_limits(client):
    info = client.info()
    assert {
        "version",
        "protocol",
        "features",
        "uptime_us",
        "store",
        "config_hash",
        "generation",
        "degraded",
        "limits",
    } <= set(info)
    assert set(info["limits"]) == {"api", "slow", "returnable"}
    assert info["limits"]["api"]["tiers"][0][1:3] == [10, 1_000_000]


def test_stats_is_a_map(client):
    client.allow("api", "counted")
    stats = client.stats()
    assert isinstance(stats, dict) and stats


def test_the_socket_is_found_by_the_environment(daemon, monkeypatch):
    monkeypatch.setenv("ALLOWD_SOCKET", daemon)
    with allowd.Client(timeout=PATIENCE) as client:
        assert client.ping()
