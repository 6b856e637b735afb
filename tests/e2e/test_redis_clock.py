# SPDX-License-Identifier: MIT
"""Whose time decides: the server's as measured, the server's as its scripts ask it, or the host's."""

from __future__ import annotations

import time

import pytest

from daemon import ASK_ALWAYS, Agent, Rack
from fake_redis import FakeRedis, Peer, honest_answer, integers, questions_in
from processes import wait_until
from redis_server import RedisServer

LIMITS = """
[limits.bucket]
rate = "10/h"
refund = true
on_failure = "deny"

[limits.fast]
rate = "50/s"
burst = 5
on_failure = "deny"

[limits.odd]
rate = "999983/day"
burst = 999983
on_failure = "deny"

[limits.tiers]
tiers = [ { name = "s", rate = "500/s" }, { name = "d", rate = "10/day", algorithm = "fixed_window" } ]
on_failure = "deny"

[limits.sliding]
rate = "10/h"
algorithm = "sliding_window"
on_failure = "deny"

[limits.log]
rate = "10/h"
algorithm = "sliding_log"
on_failure = "deny"

[limits.counter]
rate = "10/h"
algorithm = "counter"
on_failure = "deny"
"""
HOUR = 3600


def start(rack: Rack, redis: RedisServer, clock: str, url: str = "", more: str = ASK_ALWAYS) -> Agent:
    lines = f'url = "{url or redis.url}"\nreconnect_max = "250ms"\nclock = "{clock}"'
    return rack.start(LIMITS, agent='deadline = "1s"', redis=lines + more)


@pytest.mark.parametrize("limit", ["bucket", "odd", "tiers", "sliding", "log", "counter"])
def test_scripts_that_ask_the_time_decide_as_others_do(rack: Rack, redis: RedisServer, limit: str) -> None:
    asking = start(rack, redis, "redis")
    told = start(rack, redis, "synced")
    asking.wait_for_redis()
    told.wait_for_redis()
    # In turn on one key: one takes up where the other has left off.
    for _ in range(4):
        for agent in (asking, told):
            decision = agent.allow(limit, "k")
            assert (decision.allowed, decision.source) == (True, "store")
    left = asking.peek(limit, "k")
    also_left = told.peek(limit, "k")
    assert left[:4] == also_left[:4]
    assert abs(left.reset_after_us - also_left.reset_after_us) < 5_000_000
    assert asking.allow(limit, "k", left.remaining + 1).allowed is False
    assert asking.metric("redis_errors_total") == 0


def test_the_time_is_asked_in_the_script_and_not_sent(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis, "redis")
    agent.wait_for_redis()
    before = redis.calls()["time"]
    for number in range(20):
        agent.allow("bucket", f"k{number}")
    assert redis.calls()["time"] - before >= 20


def test_what_a_script_says_of_its_time_holds_for_refusals_on_the_host(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis, "redis", more="")
    agent.wait_for_redis()
    began = time.monotonic()
    granted = 0
    sources = set()
    with agent.connect() as client:
        while time.monotonic() - began < 2.0:
            decision = client.allow("fast", "k")
            granted += decision.allowed
            sources.add(decision.source)
    spent = time.monotonic() - began
    assert granted <= 5 + 50 * spent + 1
    assert granted >= 0.8 * 50 * spent, "and what came back was granted"
    assert sources == {"store", "local"}


def test_a_server_whose_scripts_may_not_ask_the_time_is_refused_with_the_reason(
    rack: Rack, redis: RedisServer
) -> None:
    redis.call("ACL", "SETUSER", "limiter", "on", ">pw", "~*", "+@all", "-time")
    agent = start(rack, redis, "redis", f"redis://limiter:pw@127.0.0.1:{redis.port}")
    wait_until(lambda: "its scripts cannot call TIME" in agent.log(), "it is logged")
    refused = agent.allow("bucket", "k")
    assert refused.verdict == "unavailable"
    assert 20_000_000 < refused.retry_after_us <= 60_000_000
    assert agent.metric("redis_connection_attempts_total") == 1


@pytest.mark.parametrize(("clock", "ahead"), [("synced", HOUR), ("host", 0)])
def test_a_server_an_hour_ahead_is_followed_or_not(rack: Rack, clock: str, ahead: int) -> None:
    told: list[float] = []

    def serve(peer: Peer) -> None:
        while True:
            command = peer.read_command()
            if command[0] == b"TIME":
                now = time.time_ns() // 1000 + HOUR * 1_000_000
                seconds, micros = b"%d" % (now // 1_000_000), b"%06d" % (now % 1_000_000)
                peer.send(b"*2\r\n$%d\r\n%s\r\n$6\r\n%s\r\n" % (len(seconds), seconds, micros))
            elif command[0] == b"EVALSHA":
                told.append(int(command[4 + questions_in(command)]) / 1e6 - time.time())
                peer.send(integers(*[0] * questions_in(command), 0))
            else:
                peer.send(honest_answer(command))

    with FakeRedis(serve) as server:
        agent = rack.start(LIMITS, agent='deadline = "1s"', redis=f'{server.config}\nclock = "{clock}"' + ASK_ALWAYS)
        agent.wait_for_redis()
        assert agent.allow("bucket", "k").source == "store"
        agent.stop()
    assert abs(told[0] - ahead) < 5, told
