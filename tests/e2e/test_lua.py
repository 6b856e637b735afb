# SPDX-License-Identifier: MIT
"""An agent on servers with one Lua or the other: it answers as on a real Redis, whatever is asked."""

from __future__ import annotations

import random
from typing import Any

import pytest

from daemon import ASK_ALWAYS, Agent, Rack
from lua_server import VERSIONS, LuaServer
from redis_server import RedisServer
from rpc import Decision

COMMON = 'on_failure = "deny"\ndeadline = "5s"'
LIMITS = f"""
[limits.bucket]
rate = "12/day"
refund = true
{COMMON}

[limits.tiers]
tiers = [ {{ name = "h", rate = "7/h", algorithm = "sliding_window" }}, {{ name = "d", rate = "11/day" }} ]
refund = true
{COMMON}

[limits.window]
rate = "9/day"
algorithm = "fixed_window"
refund = true
{COMMON}

[limits.log]
rate = "9/day"
algorithm = "sliding_log"
refund = true
{COMMON}

[limits.counter]
rate = "9/day"
algorithm = "counter"
{COMMON}
"""
REFUNDED = ("bucket", "tiers", "window", "log")
KEYS = ("one", "two", "three")
STEPS = 150


def what_matters(answer: list[Any]) -> tuple[Any, ...]:
    """Without the times, which are never the same."""
    decision = Decision(*answer)
    return (*decision[:3], decision.verdict, decision.source, decision.tier, decision.retry_after_us == -1)


def told(agent: Agent, seed: int) -> list[Any]:
    """What the agent says to questions of every kind."""
    agent.wait_for_redis()
    dice = random.Random(seed)
    answers: list[Any] = []
    with agent.connect() as client:
        for _ in range(STEPS):
            limit, key, cost = dice.choice([*REFUNDED, "counter"]), dice.choice(KEYS), dice.randrange(4)
            match dice.choice(["allow", "allow", "force", "peek", "refund", "all", "each", "reset"]):
                case "force":
                    answers.append(what_matters(client.ask("allow", limit, key, cost, {"force": True})))
                case "refund" if limit in REFUNDED:
                    answers.append(what_matters(client.ask("refund", limit, key, cost)))
                case "all" | "each" as mode:
                    several = client.ask("allow_many", [[limit, each, cost] for each in KEYS], mode)
                    answers.append([what_matters(answer) for answer in several])
                case "reset" if dice.random() < 0.3:
                    answers.append(agent.admin(f"reset {limit} {key}"))
                case "peek":
                    answers.append(what_matters(client.ask("peek", limit, key, cost)))
                case _:
                    answers.append(what_matters(client.ask("allow", limit, key, cost)))
    return answers


@pytest.mark.parametrize("clock", ["synced", "redis"])
@pytest.mark.parametrize("version", VERSIONS)
def test_an_agent_answers_as_on_a_real_redis(rack: Rack, redis: RedisServer, version: str, clock: str) -> None:
    wishes = f'\nclock = "{clock}"{ASK_ALWAYS}'
    with LuaServer(version) as server:
        other = rack.start(LIMITS, redis=server.config + wishes)
        here = told(other, 1)
        assert other.metric("redis_errors_total") == 0
        assert server.runs >= 100
        assert {key.split(b":")[2][:2] for key in server.keys.names()} >= {b"n6", b"nt", b"nl", b"nc"}
        other.stop()
    assert here == told(rack.start(LIMITS, redis=redis.config() + wishes), 1)
