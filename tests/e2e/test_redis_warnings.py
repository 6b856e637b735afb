# SPDX-License-Identifier: MIT
"""What makes a Redis that answers a bad place for limits is warned of: it may evict, it does, it is slow.

The agent looks five seconds after it has connected and then once a minute; here its minutes are short.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from daemon import ASK_ALWAYS, Agent, Rack
from hurried_time import hurried, seconds_of
from processes import wait_until
from redis_server import RedisServer
from relay import Relay

LIMITS = """
[limits.strict]
rate = "100000/h"
on_failure = "deny"
"""
MINUTES_PER_3_SECONDS = 20
WARNINGS = ("maxmemory_policy", "has evicted", "round trip", "lacks")

MakeRedis = Callable[..., RedisServer]


def start(rack: Rack, redis: str, *, times: int = MINUTES_PER_3_SECONDS, deadline: str = "30s") -> Agent:
    agent = f'deadline = "{deadline}"'
    started = rack.start(LIMITS, agent=agent, redis=redis + ASK_ALWAYS, environment=hurried(times))
    started.wait_for_redis()
    return started


def test_a_server_that_may_evict_and_then_does_is_warned_of(rack: Rack, make_redis: MakeRedis) -> None:
    redis = make_redis("--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb")
    redis.start()
    agent = start(rack, redis.config())
    wait_until(lambda: "its maxmemory_policy is allkeys-lru" in agent.log(), "that it may is logged")
    assert "has evicted" not in agent.log()
    used = dict(line.split(":") for line in redis.call("INFO", "memory").decode().split() if ":" in line)["used_memory"]
    redis.call("CONFIG", "SET", "maxmemory", int(used) + 2_000_000)

    def has_warned() -> bool:
        for number in range(20):
            redis.call("SET", f"filler {number}", "x" * 500_000, "EX", 600)
        return "has evicted" in agent.log()

    wait_until(has_warned, "that it does is logged")
    evicted = int(re.search(r"evicted_keys:(\d+)", redis.call("INFO", "stats").decode())[1])  # type: ignore[index]
    (told,) = re.findall(r"it has evicted (\d+) keys since a minute ago", agent.log())
    assert 0 < int(told) <= evicted
    assert agent.log().count("maxmemory_policy") == 1, "and not again within the hour"


def test_a_server_that_evicts_nothing_is_not_warned_of(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis.config())
    assert agent.allow("strict", "k").source == "store"
    wait_until(lambda: seconds_of(agent) > 70, "it has looked twice")
    assert not [warning for warning in WARNINGS if warning in agent.log()], agent.log()


def test_a_server_whose_answers_take_over_half_of_the_deadline_is_warned_of(rack: Rack, redis: RedisServer) -> None:
    with Relay(redis.port) as relay:
        # For it a deadline is 100 ms of ours.
        url = f'url = "redis://127.0.0.1:{relay.port}"\nreconnect_max = "250ms"'
        agent = start(rack, url, times=4, deadline="400ms")
        relay.delay = 0.07
        warning = re.compile(r"(\d+) of (\d+) answers of the last minute took longer than 200000 us, half of agent")

        def has_warned() -> bool:
            agent.allow("strict", "k")
            return warning.search(agent.log()) is not None

        wait_until(has_warned, "it is logged", 40)
        slow, answers = map(int, warning.search(agent.log()).groups())  # type: ignore[union-attr]
        assert 2 <= slow <= answers
        assert agent.metric("redis_slow_replies_total") >= slow
        agent.stop()
