# SPDX-License-Identifier: MIT
"""Names of servers: a resolver that hangs or fails costs nobody anything, and of several addresses one that works is
found."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from daemon import ASK_ALWAYS, Agent, Rack, is_sanitized
from processes import wait_until
from redis_server import RedisServer
from steered_resolver import SteeredResolver

LIMITS = """
[limits.strict]
rate = "1000/h"
on_failure = "deny"
deadline = "5s"

[limits.own]
rate = "1000000/s"
scope = "host"
"""


@pytest.fixture
def resolver(rack: Rack) -> SteeredResolver:
    return SteeredResolver(rack.directory)


def start(rack: Rack, redis: RedisServer, resolver: SteeredResolver, more: str = "") -> Agent:
    url = f'url = "redis://redis.test:{redis.port}"\nreconnect_max = "250ms"{more}'
    return rack.start(LIMITS, redis=url + ASK_ALWAYS, environment=resolver.environment)


def worst_local_decision(agent: Agent, seconds: float) -> tuple[int, float]:
    """How many limits of this host alone were decided, and the time in seconds that all but one in a hundred took."""
    times = []
    give_up = time.monotonic() + seconds
    with agent.connect() as client:
        while time.monotonic() < give_up:
            began = time.monotonic()
            assert client.allow("own", "k").source == "local"
            times.append(time.monotonic() - began)
    times.sort()
    return len(times), times[len(times) * 99 // 100]


def test_a_resolver_that_never_answers_holds_up_nobody(
    rack: Rack, redis: RedisServer, resolver: SteeredResolver
) -> None:
    resolver.hang()
    agent = start(rack, redis, resolver)
    decided, slow = worst_local_decision(agent, 3.0)
    assert agent.metric("redis_connection_attempts_total") >= 3, "it tried again meanwhile"
    assert resolver.calls == 1, "one look-up, however many attempts there were"
    assert decided > 100
    assert slow < (0.1 if is_sanitized() else 0.02), slow
    assert agent.allow("strict", "k").source == "fallback"
    assert agent.log().count("down: resolve redis.test") == 1, agent.log()
    resolver.answer("127.0.0.1")
    agent.wait_for_redis()
    assert agent.allow("strict", "k").source == "store"


@pytest.mark.parametrize("trouble", ["hang", "fail"])
def test_the_addresses_of_before_are_used_while_the_resolver_is_out_of_order(
    rack: Rack, redis: RedisServer, resolver: SteeredResolver, trouble: str
) -> None:
    resolver.answer("127.0.0.1")
    agent = start(rack, redis, resolver)
    agent.wait_for_redis()
    getattr(resolver, trouble)()
    redis.kill()
    wait_until(lambda: agent.metric("redis_up") == 0, "it has noticed")
    redis.start()
    agent.wait_for_redis()
    assert agent.allow("strict", "k").source == "store"
    assert agent.metric("redis_look_ups_failed_total") >= 1
    assert agent.log().count("cannot be looked up") == 1, agent.log()
    if trouble == "hang":
        assert resolver.calls == 2, "the first, and the one that hangs"
    resolver.answer("127.0.0.1")


def test_of_several_addresses_the_one_that_works_is_found_in_one_attempt(
    rack: Rack, redis: RedisServer, resolver: SteeredResolver
) -> None:
    resolver.answer("127.0.0.3", "127.0.0.2", "127.0.0.1")  # Redis listens on the last one alone
    agent = start(rack, redis, resolver)
    agent.wait_for_redis()
    assert agent.metric("redis_connection_attempts_total") == 1
    assert agent.allow("strict", "k").source == "store"


def test_an_address_that_swallows_packets_leaves_time_for_the_others(
    rack: Rack, redis: RedisServer, resolver: SteeredResolver
) -> None:
    # A listener whose backlog is full takes no more connections: the kernel drops their first packet.
    with socket.socket() as full:
        full.bind(("127.0.0.2", redis.port))
        full.listen(0)
        waiting = []
        for _ in range(4):
            client = socket.socket()
            client.setblocking(False)
            client.connect_ex(("127.0.0.2", redis.port))
            waiting.append(client)
        resolver.answer("127.0.0.2", "127.0.0.1")
        agent = start(rack, redis, resolver)
        agent.wait_for_redis()
        assert agent.metric("redis_connection_attempts_total") <= 2
        for client in waiting:
            client.close()
    resolver.answer("127.0.0.1")


def test_a_connection_of_bounded_age_follows_its_name_to_another_server(
    rack: Rack, redis: RedisServer, make_redis: Callable[..., RedisServer], resolver: SteeredResolver
) -> None:
    other = make_redis("--bind", "127.0.0.2", "--port", str(redis.port))
    other.start()
    resolver.answer("127.0.0.1")
    agent = start(rack, redis, resolver, '\nmax_connection_age = "400ms"')
    agent.wait_for_redis()
    assert agent.allow("strict", "k").source == "store"
    resolver.answer("127.0.0.2")
    wait_until(lambda: agent.allow("strict", "k").source == "store" and bool(other.keys()), "the other one is asked")
    assert agent.metric("redis_connects_total") == 1, "it was never down"
    assert agent.metric("redis_questions_lost_total") == 0


def test_numeric_addresses_are_not_looked_up(rack: Rack, redis: RedisServer, resolver: SteeredResolver) -> None:
    resolver.hang()
    agent = rack.start(LIMITS, redis=redis.config(), environment=resolver.environment)
    agent.wait_for_redis()
    assert resolver.calls == 0
    resolver.fail()
