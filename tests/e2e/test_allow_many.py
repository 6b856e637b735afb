# SPDX-License-Identifier: MIT
"""allow_many: many questions in one, each by itself, or all or none."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from daemon import Agent, Rack
from redis_server import RedisServer
from rpc import Decision

LIMITS = """
[agent]
deadline = "5s"
[limits.user]
rate = "3/h"
on_failure = "deny"
[limits.address]
rate = "5/h"
on_failure = "deny"
[limits.login]
tiers = [ { name = "minute", rate = "8/h", algorithm = "fixed_window" }, { name = "day", rate = "10/day" } ]
on_failure = "deny"
[limits.log]
rate = "4/h"
algorithm = "sliding_log"
on_failure = "deny"
[limits.watched]
rate = "1/h"
shadow = true
"""


@pytest.fixture(params=["memory", "redis"])
def agent(request: pytest.FixtureRequest, rack: Rack) -> Iterator[Agent]:
    if request.param == "memory":
        yield rack.start(LIMITS.replace("[agent]\n", "").replace('deadline = "5s"\n', "", 1))
        return
    yield start(rack, request.getfixturevalue("redis"))


def start(rack: Rack, redis: RedisServer) -> Agent:
    limits = LIMITS.replace("[agent]\n", "").replace('deadline = "5s"\n', "", 1).replace("\nrate", '\ndeadline = "5s"\nrate')
    agent = rack.start(limits, redis=redis.config())
    agent.wait_for_redis()
    return agent


def ask(agent: Agent, mode: str | None, *items: list[object]) -> list[Decision]:
    return [Decision(*decision) for decision in agent.ask("allow_many", list(items), mode)]


def verdicts(decisions: list[Decision]) -> list[tuple[str, int]]:
    return [(decision.verdict, decision.remaining) for decision in decisions]


@pytest.mark.parametrize("mode", ["each", None])
def test_each_is_decided_by_itself(agent: Agent, mode: str | None) -> None:
    decisions = ask(agent, mode, ["user", "a", 2], ["user", "a", 2], ["address", "a", 5], ["login", "a"])
    assert verdicts(decisions) == [("ok", 1), ("limited", 1), ("ok", 0), ("ok", 7)]
    assert [decision.tier for decision in decisions] == ["", "", "", "minute"]


def test_all_pass_or_nothing_is_charged(agent: Agent) -> None:
    assert verdicts(ask(agent, "all", ["user", "a"], ["address", "x", 2])) == [("ok", 2), ("ok", 3)]
    assert verdicts(ask(agent, "all", ["user", "a", 3], ["address", "x", 2])) == [("limited", 2), ("ok", 3)]
    assert verdicts(ask(agent, "all", ["address", "x", 2], ["user", "a", 4])) == [("ok", 3), ("never", 2)] or (
        verdicts(ask(agent, "all", ["address", "x", 2], ["user", "a", 4])) == [("ok", 3), ("never", 3)]
    ), "Redis is not asked what can never pass"
    assert verdicts(ask(agent, "all", ["user", "a", 2], ["address", "x", 3])) == [("ok", 0), ("ok", 0)]


def test_limits_of_every_kind_go_together(agent: Agent) -> None:
    items: list[list[object]] = [["login", "k", 2], ["log", "k", 2], ["user", "k", 1]]
    assert verdicts(ask(agent, "all", *items)) == [("ok", 6), ("ok", 2), ("ok", 2)]
    refused = ask(agent, "all", ["login", "k", 2], ["log", "k", 3], ["user", "k", 1])
    assert verdicts(refused) == [("ok", 6), ("limited", 2), ("ok", 2)]
    assert verdicts(ask(agent, "each", *[[limit, "k", 0] for limit, *_ in items])) == [("ok", 6), ("ok", 2), ("ok", 2)]


def test_two_items_of_one_key_count_as_their_sum(agent: Agent) -> None:
    assert verdicts(ask(agent, "all", ["user", "a", 2], ["address", "a"], ["user", "a", 2]))[0][0] == "never"
    assert agent.peek("user", "a").remaining == 3
    assert verdicts(ask(agent, "all", ["user", "a", 2], ["user", "a", 1])) == [("ok", 0), ("ok", 0)]


def test_a_limit_in_shadow_stops_nobody(agent: Agent) -> None:
    assert verdicts(ask(agent, "all", ["watched", "a"], ["user", "a"])) == [("ok", 0), ("ok", 2)]
    assert verdicts(ask(agent, "all", ["watched", "a"], ["user", "a"])) == [("shadow", 0), ("ok", 1)]


def test_what_cannot_be_asked_refuses_the_whole(agent: Agent) -> None:
    with agent.connect() as client:
        for items, mode, code in [
            ([["user", "a"], ["nobody", "a"]], "each", "unknown_limit"),
            ([["user", "a"], ["nobody", "a"]], "all", "unknown_limit"),
            ([["user", "a", -1]], "all", "bad_request"),
            ([["user"]], "all", "bad_request"),
            ([["user", "a", 1, {}]], "all", "bad_request"),
            ([["user", "a"]], "some", "bad_request"),
            ("user", "all", "bad_request"),
            ([["user", "a"]] * 257, "each", "too_large"),
            ([["user", "k" * 1025]], "each", "too_large"),
        ]:
            client.post("allow_many", items, mode)
            assert (client.receive().error or "").startswith(f"{code}: "), (items, mode)
    assert agent.peek("user", "a").remaining == 3
    assert ask(agent, "all") == []
    assert len(ask(agent, "each", *[["address", f"k{number}"] for number in range(256)])) == 256


def test_options_hold_for_all_items(agent: Agent) -> None:
    forced = agent.ask("allow_many", [["user", "a", 9], ["address", "a", 9]], "all", {"force": True})
    assert [decision[:3] for decision in forced] == [[True, 3, 0], [True, 5, 0]]


@pytest.mark.parametrize("limits", [("user", "address"), ("login", "log")])
def test_many_callers_never_get_more_than_the_limits_admit(
    rack: Rack, redis: RedisServer, limits: tuple[str, str]
) -> None:
    agents = [start(rack, redis), start(rack, redis)]
    granted: list[str] = []

    def caller(agent: Agent, own: str) -> None:
        with agent.connect() as client:
            for _ in range(12):
                # Everybody shares the second key; the first is the caller's.
                decisions = client.ask("allow_many", [[limits[0], own], [limits[1], "shared"]], "all")
                if all(decision[0] for decision in decisions):
                    granted.append(own)

    threads = [
        threading.Thread(target=caller, args=(agents[number % 2], f"own{number}")) for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    capacity = agents[0].peek(limits[1], "shared").limit
    assert len(granted) == capacity
    assert agents[0].peek(limits[1], "shared").remaining == 0
    for number in range(8):
        left = agents[0].peek(limits[0], f"own{number}")
        assert left.limit - left.remaining == granted.count(f"own{number}"), "what did not pass is not charged"
