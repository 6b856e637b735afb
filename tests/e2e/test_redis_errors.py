# SPDX-License-Identifier: MIT
"""Errors of a Redis that is up: each is counted by its kind, decided by policy meanwhile, and over when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from daemon import ASK_ALWAYS, Agent, Rack
from fake_redis import FakeRedis, Peer, honest_answer, integers, questions_in
from processes import wait_until
from redis_server import RedisServer, needs

LIMITS = """
[limits.strict]
rate = "1000/h"
on_failure = "deny"

[limits.count]
rate = "1000/h"
algorithm = "counter"
on_failure = "deny"
"""

Repair = Callable[[], object]


def start(rack: Rack, redis: RedisServer, url: str = "") -> Agent:
    lines = f'url = "{url}"\nreconnect_max = "250ms"' if url else redis.config()
    agent = rack.start(LIMITS, agent='deadline = "200ms"', redis=lines + ASK_ALWAYS)
    agent.wait_for_redis()
    return agent


def full(redis: RedisServer) -> Repair:
    redis.call("CONFIG", "SET", "maxmemory", "1")
    return lambda: redis.call("CONFIG", "SET", "maxmemory", "0")


def without_replicas(redis: RedisServer) -> Repair:
    needs(7)  # before, scripts write all the same
    redis.call("CONFIG", "SET", "min-replicas-to-write", "1")
    return lambda: redis.call("CONFIG", "SET", "min-replicas-to-write", "0")


def unable_to_save(redis: RedisServer) -> Repair:
    # A directory stands where the snapshot is to be put.
    blocker = redis.unix_path.with_name("dump.rdb")
    blocker.mkdir()
    redis.call("CONFIG", "SET", "save", "3600 1000000")
    redis.call("BGSAVE")
    wait_until(lambda: "rdb_last_bgsave_status:err" in redis.call("INFO", "persistence").decode(), "saving has failed")

    def repair() -> None:
        blocker.rmdir()
        redis.call("CONFIG", "SET", "save", "")

    return repair


@pytest.mark.parametrize(
    ("damage", "kind"),
    [(full, "no_memory"), (without_replicas, "cannot_persist"), (unable_to_save, "cannot_persist"), (RedisServer.hang, "busy")],
)
def test_a_server_that_cannot_write_now_keeps_its_connection(
    rack: Rack, redis: RedisServer, damage: Callable[[RedisServer], Repair], kind: str
) -> None:
    agent = start(rack, redis)
    assert agent.allow("strict", "before").source == "store"
    repair = damage(redis)
    wait_until(lambda: agent.allow("strict", "k").verdict == "unavailable", "the policy answers")
    wait_until(lambda: agent.allow("strict", "k") and agent.metric(f"redis_{kind}_total") >= 1, "it is counted")
    assert agent.allow("strict", "k").verdict == "unavailable"
    time.sleep(0.5)
    repair()
    wait_until(lambda: agent.allow("strict", "after").source == "store", "the store answers")
    assert agent.metric("redis_connection_attempts_total") == 1, "the connection was kept"
    assert agent.log().count("token_bucket fails: ") == 1, agent.log()


def test_a_replica_is_left_and_looked_for_anew(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis)
    redis.call("REPLICAOF", "127.0.0.1", "1")
    wait_until(lambda: agent.allow("strict", "k").verdict == "unavailable", "it is noticed")
    wait_until(lambda: agent.metric("redis_connects_total") >= 2, "it has connected anew")
    assert agent.metric("redis_wrong_server_total") >= 1
    with agent.connect() as client:
        wait_until(
            lambda: client.allow("strict", "k") and agent.metric("redis_connects_total") >= 6, "it has tried often"
        )
    assert agent.log().count(" down: READONLY") <= 3, "no lines for every time"
    redis.call("REPLICAOF", "NO", "ONE")
    wait_until(lambda: agent.allow("strict", "after").source == "store", "the store answers")


@pytest.mark.parametrize("error", ["LOADING Redis is loading", "MASTERDOWN Link with MASTER is down"])
def test_a_server_that_comes_up_slowly_is_asked_until_it_is_there(rack: Rack, error: str) -> None:
    errors = iter([error] * 3)

    def serve(peer: Peer) -> None:
        while True:
            command = peer.read_command()
            if command[0] != b"EVALSHA":
                peer.send(honest_answer(command))
            elif answer := next(errors, ""):
                peer.send(b"-%s\r\n" % answer.encode())
            else:
                peer.send(integers(*[0] * questions_in(command), 0))

    with FakeRedis(serve) as server:
        agent = rack.start(LIMITS, redis=server.config + ASK_ALWAYS)
        wait_until(lambda: agent.allow("strict", "k").source == "store", "the store answers")
        assert agent.metric("redis_errors_total") == 3
        agent.stop()


def test_a_missing_permission_is_named_and_its_scripts_are_not_tried_again_soon(
    rack: Rack, redis: RedisServer
) -> None:
    redis.call("ACL", "SETUSER", "limiter", "on", ">pw", "~allowd:*", "+@all", "-set", "-setex")
    agent = start(rack, redis, f"redis://limiter:pw@127.0.0.1:{redis.port}")
    wait_until(lambda: agent.allow("strict", "k").verdict == "unavailable", "the policy answers")
    wait_until(lambda: "its user lacks +set +setex;" in agent.log(), "it is named")
    sent = agent.metric("redis_scripts_total")
    for _ in range(20):
        assert agent.allow("strict", "k").verdict == "unavailable"
    assert agent.metric("redis_scripts_total") == sent
    assert agent.metric("redis_not_permitted_total") == 1
    assert agent.allow("count", "k").source == "store", "a limit that needs no such permission"
    assert agent.metric("redis_connection_attempts_total") == 1, "the connection was kept"


def test_a_key_that_the_user_may_not_touch_is_named(rack: Rack, redis: RedisServer) -> None:
    redis.call("ACL", "SETUSER", "limiter", "on", ">pw", "~other:*", "+@all")
    agent = start(rack, redis, f"redis://limiter:pw@127.0.0.1:{redis.port}")
    wait_until(lambda: agent.allow("strict", "k").verdict == "unavailable", "the policy answers")
    wait_until(lambda: "its user lacks ~allowd:*;" in agent.log(), "it is named")
