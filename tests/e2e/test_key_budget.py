# SPDX-License-Identifier: MIT
"""Floods of keys that somebody makes up: what they get, what they cost, and whom they leave alone."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from daemon import ASK_ALWAYS, Agent, Rack, is_sanitized
from redis_server import RedisServer
from rpc import Client, Decision, request

PER_SECOND = 200
LIMITS = f"""
[limits.api]
rate = "10/h"
max_new_keys_per_second = {PER_SECOND}
overflow = {{ rate = "50/h", burst = 50 }}
on_failure = "deny"
deadline = "20s"
"""
# Two keys at once, and practically no more.
NARROW = LIMITS.replace(f"max_new_keys_per_second = {PER_SECOND}", "max_new_keys_per_second = 2")
BATCH = 2000
OVERFLOW_LINE = "share its overflow bucket"


def start(rack: Rack, redis: RedisServer | None, limits: str = LIMITS, more: str = "", agent: str = "") -> Agent:
    running = rack.start(limits, agent=agent, redis=redis.config() + more if redis else "")
    running.wait_for_redis()
    return running


@pytest.fixture(params=["redis", "memory"])
def store(request: pytest.FixtureRequest) -> RedisServer | None:
    return request.getfixturevalue("redis") if request.param == "redis" else None


def flood(client: Client, first: int, count: int, limit: str = "api") -> list[Decision]:
    """The answers about so many keys that nobody has used, asked as fast as they are taken."""
    client.send(b"".join(request("allow", limit, f"made up {first + n}", msgid=n) for n in range(count)))
    return [Decision(*reply.result) for reply in client.receive_many(count).values()]


def use_up_places(client: Client, limit: str = "api") -> None:
    """Takes the places of this moment: those who come next, within the second, find few or none."""
    flood(client, 10_000_000, 2 * PER_SECOND, limit)


def tiers_of(decisions: list[Decision]) -> Counter[str]:
    return Counter(decision.tier for decision in decisions)


def test_a_flood_of_keys_costs_little_and_leaves_known_keys_alone(rack: Rack, store: RedisServer | None) -> None:
    # A small table: of a large one the kernel hands out a page for each key, up to its bound.
    agent = start(rack, store, agent="max_keys = 16384")
    known = [f"user {number}" for number in range(20)]
    tiers: Counter[str] = Counter()
    passed_by_overflow = 0
    with agent.connect() as client:
        started = time.monotonic()
        for key in known:
            assert client.allow("api", key)[2:7:4] == (9, "store" if store else "local")
        resident = 0
        total = 300_000
        for first in range(0, total, BATCH):
            decisions = flood(client, first, BATCH)
            tiers += tiers_of(decisions)
            passed_by_overflow += sum(each.allowed for each in decisions if each.tier == "overflow")
            assert all(each.limit == 50 for each in decisions if each.tier == "overflow")
            if first == 20_000:
                resident = agent.resident_bytes()
            if first % 50_000 == 0:  # 6 times
                for key in known:
                    decision = client.allow("api", key)
                    assert decision.allowed and decision.tier == "", "known keys are answered as before"
                    assert decision.remaining == 8 - first // 50_000
        elapsed = time.monotonic() - started
        assert tiers["overflow"] + tiers[""] == total
        assert tiers["overflow"] > total // 2
        # One permit of the overflow bucket comes back in 72 s.
        assert 50 <= passed_by_overflow <= 50 + elapsed / 72 + 1
        most = PER_SECOND * (elapsed + 1)
        assert tiers[""] <= most
        if store is not None:
            stored = len(store.keys())
            assert stored == tiers[""] + len(known) + 1, "a key for each that was admitted, and the overflow's"
            assert stored <= most + len(known) + 1
            (shared,) = [key for key in store.keys() if b":o" in key]
            assert shared.endswith(b":o3:api:")
            assert 0 < store.call("TTL", shared) <= 3600 + 61
        else:
            assert agent.metric("memory_keys") == tiers[""] + len(known)
        if not is_sanitized():
            assert agent.resident_bytes() < resident + 4 * 1024 * 1024, "made-up keys take no memory"
        stats = client.ask("stats")
        assert stats["new_keys_refused_total"] == tiers["overflow"]
        assert sum(stats["decisions"]["api/overflow"].values()) == tiers["overflow"]
        assert stats["decisions"]["api"].get("ok/store", 0) + stats["decisions"]["api"].get("ok/local", 0) == (
            tiers[""] + 7 * len(known)
        )
    assert agent.log().count(OVERFLOW_LINE) == 1, "logged once"


def test_two_agents_share_one_overflow_bucket(rack: Rack, redis: RedisServer) -> None:
    agents = [start(rack, redis, NARROW, ASK_ALWAYS) for _ in range(2)]
    passed, by_overflow = 0, 0
    with agents[0].connect() as a, agents[1].connect() as b:
        for number in range(40):
            for name, client in (("a", a), ("b", b)):
                decision = client.allow("api", f"{name} {number}")
                if decision.tier == "overflow":
                    by_overflow += 1
                    passed += decision.allowed
                else:
                    assert decision.allowed and decision.remaining == 9
        assert by_overflow >= 60
        assert passed == 50, "one bucket for all agents"
        assert a.allow("api", "a 0").tier == "", "which knows it"
    assert len([key for key in redis.keys() if key.endswith(b":o3:api:")]) == 1


def test_without_overflow_the_bucket_has_the_limits_own_tiers(rack: Rack, store: RedisServer | None) -> None:
    limits = """
[limits.api]
tiers = [ { name = "hour", rate = "5/h" }, { name = "day", rate = "7/day", algorithm = "fixed_window" } ]
max_new_keys_per_second = 1
deadline = "20s"
"""
    agent = start(rack, store, limits)
    with agent.connect() as client:
        by_overflow = [each for each in flood(client, 0, 100) if each.tier == "overflow"]
        assert sum(each.allowed for each in by_overflow) == 5
        assert all(each.limit == 5 for each in by_overflow)


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "sliding_log", "counter"])
@pytest.mark.parametrize("overflow", ["", 'overflow = { rate = "9/h" }'])
def test_any_algorithm_may_have_a_budget(
    rack: Rack, store: RedisServer | None, algorithm: str, overflow: str
) -> None:
    limits = f"""
[limits.api]
rate = "6/h"
algorithm = "{algorithm}"
max_new_keys_per_second = 1
deadline = "20s"
{overflow}
"""
    agent = start(rack, store, limits)
    with agent.connect() as client:
        by_overflow = [each for each in flood(client, 0, 100) if each.tier == "overflow"]
        assert len(by_overflow) >= 90
        assert sum(each.allowed for each in by_overflow) == (9 if overflow else 6)


def test_peeks_and_refunds_need_no_place(rack: Rack, store: RedisServer | None) -> None:
    agent = start(rack, store, NARROW + "refund = true\n")
    with agent.connect() as client:
        use_up_places(client)
        for number in range(50):
            peeked = client.peek("api", f"peeked {number}")
            assert (peeked.tier, peeked.remaining) == ("", 10)
            assert client.refund("api", f"peeked {number}", 1).tier == ""
            assert client.allow("api", f"peeked {number}", 0).tier == ""
        stored = len(store.keys()) if store else agent.metric("memory_keys")
        tiers = tiers_of([client.allow("api", f"peeked {number}") for number in range(50)])
        assert tiers["overflow"] >= 40, "a look makes nobody known"
        assert (len(store.keys()) if store else agent.metric("memory_keys")) - stored == tiers[""]


def test_a_reload_changes_the_budget_and_keeps_what_is_used(rack: Rack, redis: RedisServer) -> None:
    path = rack.new_path(".sock")
    config = rack.write_config(NARROW, path=path, redis=redis.config())
    agent = rack.start_command(["--config", str(config)], path)
    agent.wait_for_redis()
    text = config.read_text()

    def reload(changed: str) -> None:
        config.write_text(changed)
        assert agent.admin("reload").startswith("reloaded: ")

    with agent.connect() as client:
        first = flood(client, 0, 100)
        assert sum(each.allowed for each in first if each.tier == "overflow") == 50
        reload(text.replace("burst = 50", "burst = 60"))
        second = [each for each in flood(client, 1000, 100) if each.tier == "overflow"]
        assert sum(each.allowed for each in second) == 10, "the same bucket, with other numbers"
        assert all(each.limit == 60 for each in second)
        reload(text.replace("max_new_keys_per_second = 2\n", ""))
        assert tiers_of(flood(client, 2000, 100)) == {"": 100}, "off"
        refused = agent.metric("new_keys_refused_total")
        reload(text)
        assert tiers_of(flood(client, 3000, 100))["overflow"] >= 90
        assert agent.metric("new_keys_refused_total") >= refused + 90
        assert tiers_of(flood(client, 2000, 100)) == {"": 100}, "those have become known"


def test_all_or_nothing_gives_back_what_the_overflow_bucket_gave(rack: Rack, store: RedisServer | None) -> None:
    limits = """
[limits.api]
rate = "10/h"
max_new_keys_per_second = 1
overflow = { rate = "3/100d" }
deadline = "20s"
"""
    agent = start(rack, store, limits)
    with agent.connect() as client:

        def use_up_the_place(name: str) -> None:
            """Without charging the overflow bucket, which cannot hold that cost."""
            for number in range(100):
                if client.allow("api", f"{name} {number}", 4).verdict == "never":
                    return
            raise AssertionError("always a place")

        for attempt in range(20):
            use_up_the_place(f"before {attempt}")
            both = client.ask("allow_many", [["api", f"a {attempt}", 2], ["api", f"b {attempt}", 2]], "all")
            decisions = [Decision(*each) for each in both]
            if tiers_of(decisions) == {"overflow": 2}:
                break
        else:
            raise AssertionError("never two without a place")
        assert sorted(decision.allowed for decision in decisions) == [False, True]
        for attempt in range(20):
            use_up_the_place(f"after {attempt}")
            decision = client.allow("api", f"c {attempt}", 3)
            if decision.tier == "overflow":
                break
        assert (decision.tier, decision.allowed, decision.remaining) == ("overflow", True, 0)
        assert agent.metric("compensations_total") >= 1
