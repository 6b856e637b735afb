# SPDX-License-Identifier: MIT
"""A Redis that keeps failing is not asked but for probes: the failure policy answers at once, and the store answers
again by itself once Redis is well."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest

from daemon import ASK_ALWAYS, Agent, Rack
from processes import wait_until
from redis_server import RedisServer
from test_redis_outages import with_little_memory

DEADLINE = 0.12  # seconds: five times that is less than the second after which a server counts as down
LIMITS = """
[limits.strict]
rate = "1/10d"
burst = 1000
on_failure = "deny"
"""


def start(rack: Rack, redis: RedisServer) -> Agent:
    agent = rack.start(LIMITS, agent=f'deadline = "{int(DEADLINE * 1000)}ms"', redis=redis.config() + ASK_ALWAYS)
    wait_until(lambda: agent.allow("strict", "first").source == "store", "it has found its Redis")
    assert breaker_of(agent) == "closed"
    return agent


def breaker_of(agent: Agent) -> str:
    return shard_of(agent)["breaker"]


def shard_of(agent: Agent) -> dict[str, str]:
    (shard,) = agent.shards().values()
    return shard


def ask_until_it_opens(agent: Agent) -> None:
    """Asks about several keys at a time, until Redis is not asked any more."""

    def is_open() -> bool:
        for number in range(8):
            client.post("allow", "strict", f"k{number}")
        client.receive_many(8)
        return agent.metric("redis_breaker_opens_total") >= 1

    with agent.connect() as client:
        wait_until(is_open, "the breaker opens")


def check_that_nobody_waits(agent: Agent) -> None:
    """But for a probe now and then, which may wait until its deadline."""
    times = []
    with agent.connect() as client:
        for number in range(40):
            began = time.monotonic()
            decision = client.allow("strict", f"k{number % 4}")
            times.append(time.monotonic() - began)
            assert decision.verdict == "unavailable"
            assert 0 < decision.retry_after_us <= 1_000_000
    assert statistics.median(times) < DEADLINE / 2, times


def check_that_it_returns(agent: Agent) -> None:
    wait_until(lambda: agent.allow("strict", "k0").source == "store", "the store answers again")
    assert breaker_of(agent) == "closed"
    assert agent.metric("redis_breaker_open") == 0
    agent.wait_for_redis()


def test_a_redis_that_stops_is_not_waited_for(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis)
    redis.pause()
    ask_until_it_opens(agent)
    check_that_nobody_waits(agent)
    assert shard_of(agent)["reason"] in ("no answer in time", "no answer for a second")
    redis.resume()
    check_that_it_returns(agent)
    assert (shard_of(agent)["reason"], shard_of(agent)["reason_age_us"]) == ("-", "-")
    assert agent.log().count("failures in a row, the last: no answer in time") == 1, agent.log()
    assert agent.log().count("answers in time again") <= 1


def test_one_key_is_enough_to_notice(rack: Rack, redis: RedisServer) -> None:
    # All but the first query wait here for the answer to the one question.
    agent = start(rack, redis)
    redis.pause()
    with agent.connect() as client:
        for number in range(12):
            client.post("allow", "strict", "k", 1, {"deadline_us": 20_000 * (1 + number)})
        client.receive_many(12)
    assert agent.metric("redis_breaker_opens_total") == 1
    check_that_nobody_waits(agent)
    redis.resume()
    check_that_it_returns(agent)


def test_impatient_queries_open_nothing(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis)
    redis.pause()
    with agent.connect() as client:
        for _ in range(20):
            assert client.allow("strict", "k", 1, deadline_us=1000).verdict == "unavailable"
            time.sleep(0.011)
    assert agent.metric("redis_breaker_opens_total") == 0
    redis.resume()
    check_that_it_returns(agent)


@pytest.mark.parametrize("damage", [with_little_memory, RedisServer.hang])
def test_a_redis_that_refuses_is_asked_by_probes_alone(
    rack: Rack, redis: RedisServer, damage: Callable[[RedisServer], Callable[[], None]]
) -> None:
    agent = start(rack, redis)
    repair = damage(redis)
    ask_until_it_opens(agent)
    check_that_nobody_waits(agent)
    shard = shard_of(agent)
    assert shard["breaker"] in ("open", "probing")
    assert shard["reason"].startswith(("OOM ", "BUSY ")), shard
    assert 0 <= int(shard["reason_age_us"]) < 5_000_000
    repair()
    check_that_it_returns(agent)


def test_what_redis_said_before_still_refuses(rack: Rack, redis: RedisServer) -> None:
    agent = rack.start(
        LIMITS + '\n[limits.empty]\nrate = "1/10d"\nburst = 1\non_failure = "allow"\n',
        agent=f'deadline = "{int(DEADLINE * 1000)}ms"',
        redis=redis.config() + '\n\n[prefilter]\ntrust = "1m"',
    )
    wait_until(lambda: agent.allow("empty", "k").source == "store", "it has found its Redis")
    assert agent.allow("empty", "k").verdict == "limited"
    with_little_memory(redis)
    ask_until_it_opens(agent)
    decision = agent.allow("empty", "k")
    assert (decision.verdict, decision.source) == ("limited", "local")
    assert agent.allow("empty", "another")[5:7] == ("ok", "fallback")
