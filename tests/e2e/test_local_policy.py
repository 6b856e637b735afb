# SPDX-License-Identifier: MIT
"""on_failure = "local": without Redis each agent enforces its share, and Redis learns of it afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable

import local_outage
from daemon import ASK_ALWAYS, Agent, Rack
from processes import wait_until
from redis_server import RedisServer
from relay import Relay

MakeRedis = Callable[..., RedisServer]

LIMITS = """
[limits.api]
rate = "1/10d"
burst = 100
on_failure = "local"
refund = true

[limits.fixed]
rate = "1/10d"
burst = 100
on_failure = "local"
local_share = 4

[limits.login]
tiers = [ { name = "burst", rate = "20/10d" }, { name = "day", rate = "200/day", algorithm = "fixed_window" } ]
on_failure = "local"

[limits.parted]
rate = "2/10d"
burst = 100
split = 2
on_failure = "local"
"""


def keeping_its_data(make_redis: MakeRedis) -> RedisServer:
    redis = make_redis("--appendonly", "yes", "--appendfsync", "no")
    redis.start()
    return redis


def start(rack: Rack, redis: RedisServer) -> Agent:
    agent = rack.start(LIMITS, agent='deadline = "200ms"', redis=redis.config() + ASK_ALWAYS)
    wait_until(lambda: agent.metric("agents_known") == 1, "it has found its Redis, and counted itself")
    return agent


def lose(agent: Agent, redis: RedisServer) -> None:
    redis.kill()
    wait_until(lambda: agent.ask("info")["degraded"], "it has noticed")


def wait_until_back(agent: Agent) -> None:
    agent.wait_for_redis()


def test_what_was_used_without_redis_is_used(rack: Rack, make_redis: MakeRedis) -> None:
    redis = keeping_its_data(make_redis)
    agent = start(rack, redis)
    assert agent.allow("api", "k", 40).remaining == 60
    lose(agent, redis)
    alone = agent.allow("api", "k", 25)
    assert alone[:3] == (True, 100, 35)
    assert (alone.verdict, alone.source) == ("ok", "fallback")
    refused = agent.allow("api", "k", 36)
    assert (refused.verdict, refused.source) == ("limited", "fallback")
    assert refused.retry_after_us > 0
    assert agent.peek("api", "k").remaining == 35
    assert agent.ask("refund", "api", "k", 5)[2] == 40
    assert agent.allow("api", "never asked", 10).remaining == 90
    assert agent.metric("local_share_decisions_total") == 5
    redis.start()
    wait_until_back(agent)
    back = agent.peek("api", "k")
    assert (back.remaining, back.source) == (40, "store")
    assert agent.metric("local_share_debits_total") == 1
    assert agent.metric("local_share_debited_permits_total") == 20
    assert agent.allow("api", "never asked", 0).remaining == 90
    assert agent.metric("local_share_debits_total") == 2
    # Once.
    assert agent.peek("api", "k").remaining == 40
    assert agent.metric("local_share_debits_total") == 2


def test_who_comes_back_long_after_the_others_pays_all_that_it_owes(rack: Rack, redis: RedisServer) -> None:
    limits = """
[limits.api]
rate = "20/s"
burst = 100
on_failure = "local"
local_share = 2
"""
    with Relay(redis.port) as relay:
        early = rack.start(limits, agent='deadline = "200ms"', redis=redis.config())
        late_config = f'url = "redis://127.0.0.1:{relay.port}"\nreconnect_max = "250ms"'
        late = rack.start(limits, agent='deadline = "200ms"', redis=late_config)
        for agent in (early, late):
            agent.wait_for_redis()
        relay.shut()
        wait_until(lambda: late.ask("info")["degraded"], "it has noticed")
        assert late.allow("api", "k", 50).source == "fallback", "all of its share"
        # Nothing is left when it comes back, as the others are held no longer.
        assert early.allow("api", "k", 100).source == "store"
        relay.open()
        wait_until(lambda: not late.ask("info")["degraded"], "it has found its Redis")
        began = time.monotonic()
        with late.connect() as client:
            while not (decision := client.allow("api", "k")).allowed:
                time.sleep(0.01)
        waited = time.monotonic() - began
        assert decision.source in ("store", "local")
        # Its share refills by 10 a second meanwhile, and the limit, which nobody else asks for, by 20.
        debited = late.metric("local_share_debited_permits_total")
        print(f"paid {debited:g} permits within {waited:.2f} s")
        assert waited > 0.8, "it has paid before anything passed"
        assert late.metric("local_share_debits_short_total") >= 1


def test_a_share_by_hand_and_tiers(rack: Rack, make_redis: MakeRedis) -> None:
    redis = keeping_its_data(make_redis)
    agent = start(rack, redis)
    assert agent.allow("fixed", "k", 60).remaining == 40
    assert agent.allow("login", "k", 5).remaining == 15
    lose(agent, redis)
    assert agent.allow("fixed", "k", 4)[:3] == (True, 25, 6), "a fourth of forty, less four"
    assert agent.allow("fixed", "new", 26).verdict == "limited", "a fourth holds 25"
    assert agent.allow("fixed", "new", 101).verdict == "never"
    login = agent.allow("login", "k", 15)
    assert (login.allowed, login.tier, login.remaining) == (True, "burst", 0)
    assert agent.allow("login", "k")[5:8] == ("limited", "fallback", "burst")
    redis.start()
    wait_until_back(agent)
    assert agent.peek("fixed", "k").remaining == 36
    assert agent.allow("login", "k").verdict == "limited"
    wait_until(lambda: agent.metric("local_share_debited_permits_total") == 4 + 15, "both are debited")


def test_each_part_of_a_limit_is_enforced_and_charged_by_itself(rack: Rack, make_redis: MakeRedis) -> None:
    redis = keeping_its_data(make_redis)
    agent = start(rack, redis)
    assert agent.allow("parted", "k", 40)[:3] == (True, 50, 10)
    lose(agent, redis)
    assert agent.allow("parted", "k", 10)[:3] == (True, 50, 0), "what is left of the part that it prefers"
    assert agent.allow("parted", "k", 45)[:3] == (True, 50, 5), "the other one, of which nothing is known here"
    assert agent.allow("parted", "k", 10).verdict == "limited"
    redis.start()
    wait_until_back(agent)
    assert agent.allow("parted", "k", 6).verdict == "limited", "both have paid"
    assert sorted(redis.bucket(key).permits_used for key in redis.keys()) == [45, 50]
    assert agent.allow("parted", "k", 5)[:7:6] == (True, "store")
    assert agent.metric("local_share_debited_permits_total") == 55


def test_an_agent_that_never_saw_redis_denies_unless_its_share_is_given(rack: Rack, make_redis: MakeRedis) -> None:
    agent = rack.start(LIMITS, redis=make_redis().config())
    assert agent.allow("api", "k").verdict == "unavailable"
    assert agent.allow("fixed", "k").remaining == 24


def test_four_agents_through_a_crash_of_redis(rack: Rack, make_redis: MakeRedis) -> None:
    redis = keeping_its_data(make_redis)
    agents = local_outage.start(rack, redis, None)
    outage = local_outage.run(agents, 5.0, redis.kill, redis.start)
    outage.check()
    assert sum(agent.metric("local_share_debits_total") for agent in agents) >= 4


def test_four_agents_through_a_stop_of_redis(rack: Rack, make_redis: MakeRedis) -> None:
    redis = keeping_its_data(make_redis)
    agents = local_outage.start(rack, redis, local_outage.AGENTS)
    # What was asked in the second before it counted as down is answered late: a refill's worth.
    local_outage.run(agents, 4.0, redis.pause, redis.resume).check(spare=local_outage.RATE)
