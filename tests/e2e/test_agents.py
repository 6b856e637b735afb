# SPDX-License-Identifier: MIT
"""How many agents share a Redis: each counts itself and the others, and keeps the number while Redis is away."""

from __future__ import annotations

import time

from daemon import Agent, Rack
from processes import wait_until
from redis_server import RedisServer

LIMITS = """
[limits.api]
rate = "10/h"
max_new_keys_per_second = 10
"""
SET = "allowd:{agents}"


def known(agent: Agent) -> float:
    return agent.metric("agents_known")


def shards_column(agent: Agent, name: str) -> str:
    (shard,) = agent.shards().values()
    return shard[name]


def test_agents_count_each_other_and_keep_the_number_without_redis(rack: Rack, redis: RedisServer) -> None:
    first = rack.start(LIMITS, redis=redis.config())
    wait_until(lambda: known(first) == 1, "it has counted itself")
    second = rack.start(LIMITS, redis=redis.config())
    wait_until(lambda: known(second) == 2, "it has counted both at once")
    wait_until(lambda: known(first) == 2, "it has noticed with its next beat", within=20)
    assert first.ask("info")["agents"] == 2
    assert shards_column(first, "agents") == "2"
    members = redis.call("ZRANGE", SET, "0", "-1")
    assert len(set(members)) == 2 and all(len(member) == 32 for member in members)
    now = time.time() * 1e6
    for member in members:
        assert abs(float(redis.call("ZSCORE", SET, member)) - now) < 30e6, "scores are Redis's time"
    assert 0 < redis.call("TTL", SET) <= 60
    second.stop()
    wait_until(lambda: redis.call("ZCARD", SET) == 1, "who stops takes itself off")
    redis.kill()
    wait_until(lambda: first.ask("info")["degraded"], "it has noticed")
    assert known(first) == 2


def test_who_has_not_been_heard_of_for_half_a_minute_is_removed(rack: Rack, redis: RedisServer) -> None:
    now = int(time.time() * 1e6)
    redis.call("ZADD", SET, now - 31_000_000, "silent", now - 20_000_000, "late", now + 3_600_000_000, "ahead")
    agent = rack.start(LIMITS, redis=redis.config())
    wait_until(lambda: known(agent) > 0, "it has counted")
    assert known(agent) == 2
    assert b"late" in redis.call("ZRANGE", SET, "0", "-1")


def test_an_idle_agent_asks_little(rack: Rack, redis: RedisServer) -> None:
    agent = rack.start(LIMITS, redis=redis.config())
    wait_until(lambda: known(agent) == 1, "it has counted itself")
    redis.call("CONFIG", "RESETSTAT")
    wait_until(lambda: {"zadd", "time"} <= redis.calls().keys(), "it has said so again, and looked at the clock")
    calls = redis.calls()
    assert calls["zadd"] == calls["expire"] == calls["zcount"] == 1
    assert calls["zremrangebyscore"] == 0, "that is left to the first and every third beat"
    assert calls["time"] <= 3


def test_a_value_that_is_no_set_is_put_right(rack: Rack, redis: RedisServer) -> None:
    redis.plant(SET.encode(), b"garbage")
    agent = rack.start(LIMITS, redis=redis.config())
    wait_until(lambda: known(agent) == 1, "it has counted itself")
    assert 0 < redis.call("TTL", SET) <= 60
    assert agent.metric("redis_healed_total") == 1
    assert agent.log().count("cannot be counted") == 1


def test_without_the_right_to_count_all_else_works(rack: Rack, redis: RedisServer) -> None:
    redis.call("ACL", "SETUSER", "few", "reset", "on", ">pa55", "~*", "+@all", "-zadd")
    agent = rack.start(LIMITS, redis=f'url = "redis://few:pa55@127.0.0.1:{redis.port}"')
    wait_until(lambda: agent.allow("api", "k").source == "store", "the store answers")
    wait_until(lambda: "cannot be counted" in agent.log(), "it says so")
    assert known(agent) == 0
    assert shards_column(agent, "agents") == "unknown"
    assert agent.metric("redis_breaker_opens_total") == 0


def test_agents_divide_what_they_may_make_known(rack: Rack, redis: RedisServer) -> None:
    agents = [rack.start(LIMITS, redis=redis.config()) for _ in range(2)]
    wait_until(lambda: all(known(agent) == 2 for agent in agents), "both know of both", within=20)
    for number, agent in enumerate(agents):
        with agent.connect() as client:
            began = time.monotonic()
            tiers = [client.allow("api", f"{number}-{key}").tier for key in range(40)]
            seconds = time.monotonic() - began
        assert 5 <= tiers.count("") <= 5 * (1 + seconds) + 1, "half of the ten each"
