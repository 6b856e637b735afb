# SPDX-License-Identifier: MIT
"""Values in Redis that the agent did not write, or not like that: newer ones are left alone, garbage heals."""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable

import pytest

from daemon import ASK_ALWAYS, Agent, Rack
from redis_server import RedisServer, StoredBucket

LIMITS = """
[limits.api]
rate = "10/h"
on_failure = "deny"
deadline = "5s"

[limits.lax]
rate = "10/h"
on_failure = "allow"
deadline = "5s"
"""
HOUR = 3_600_000_000  # µs
UNIT = HOUR // 10
YEAR_SECONDS = 365 * 86_400


@pytest.fixture(scope="module")
def agent(shared_rack: Rack, shared_redis: RedisServer) -> Agent:
    started = shared_rack.start(LIMITS, redis=shared_redis.config() + ASK_ALWAYS)
    started.wait_for_redis()
    return started


@pytest.fixture
def redis(agent: Agent, shared_redis: RedisServer) -> RedisServer:
    """The shared Redis, empty."""
    shared_redis.call("FLUSHALL")
    return shared_redis


def key_of(agent: Agent, redis: RedisServer, limit: str = "api") -> bytes:
    """The Redis key of that limit's key `k`, with nothing in it."""
    agent.allow(limit, "k")
    key = redis.only_key()
    redis.call("DEL", key)
    return key


def redis_time(redis: RedisServer) -> int:
    seconds, micros = map(int, redis.call("TIME"))
    return seconds * 1_000_000 + micros


def random_value(first_byte: int) -> bytes:
    return bytes([first_byte]) + random.Random(first_byte).randbytes(26)


# Newer formats


NEWER = {
    "the next, and no more": b"\x02",
    "the next, of our length": random_value(2),
    "the last, of our length": random_value(31),
    "the last, and much": b"\x1f" + b"x" * 500,
}


@pytest.mark.parametrize("name", NEWER)
@pytest.mark.parametrize("limit", ["api", "lax"])
def test_a_newer_value_is_left_byte_for_byte_and_the_policy_answers(
    agent: Agent, redis: RedisServer, limit: str, name: str
) -> None:
    value = NEWER[name]
    key = key_of(agent, redis, limit)
    redis.call("SET", key, value, "EX", 1000)
    before = agent.metric("redis_unknown_format_total")
    for decision in (agent.allow(limit, "k"), agent.allow(limit, "k", 10), agent.peek(limit, "k")):
        assert decision.source == "fallback"
        if limit == "lax":
            assert decision == (True, 10, 10, 0, 0, "ok", "fallback", "", HOUR, 0)
        else:
            assert (decision.allowed, decision.verdict, decision.remaining) == (False, "unavailable", 0)
            assert decision.retry_after_us > 0
    assert redis.call("GET", key) == value
    assert 900 < redis.call("TTL", key) <= 1000
    assert agent.metric("redis_unknown_format_total") == before + 3
    assert not agent.ask("info")["degraded"], "one key is not the whole store"


def test_a_newer_value_without_ttl_gets_none(agent: Agent, redis: RedisServer) -> None:
    key = key_of(agent, redis)
    redis.plant(key, b"\x02new")
    agent.allow("api", "k")
    assert redis.call("TTL", key) == -1


def test_a_newer_value_disturbs_no_other_key_of_its_batch(agent: Agent, redis: RedisServer) -> None:
    redis.plant(key_of(agent, redis), b"\x02new")
    with agent.connect() as client:
        for number in range(30):
            client.post("allow", "api", "k" if number % 3 == 0 else f"other{number}")
        replies = client.receive_many(30)
    for number in range(30):
        assert replies[number + 1].result[6] == ("fallback" if number % 3 == 0 else "store")
    for key in redis.keys():
        redis.call("DEL", key)


# Garbage

NOW = 1_700_000_000_000_000
GARBAGE = {
    "text": b"hello",
    "nothing": b"",
    "a word that reads as a number": b"nan",
    "a huge number": b"1e308",
    "a bare integer": b"17",
    "an old text format": b"0:5:1700000000000000",
    "a blob of our length": random_value(0xF3),
    "a blank blob of our length": b" " * 27,
    "zeros of our length": bytes(27),
    "the format number alone": b"\x01",
    "a value cut short": StoredBucket(UNIT, NOW, UNIT).encoded()[:-1],
    "a value with a byte too many": StoredBucket(UNIT, NOW, UNIT).encoded() + b"\x00",
    "a unit of nothing": StoredBucket(0, NOW, 5).encoded(),
    "a unit beyond all": StoredBucket(2**52 + 1, NOW, 5).encoded(),
    "the largest unit": StoredBucket(2**56 - 1, NOW, 5).encoded(),
    "a use beyond all": StoredBucket(UNIT, NOW, 2**52 + 1).encoded(),
    "the largest use": StoredBucket(UNIT, NOW, 2**56 - 1).encoded(),
    "a time beyond all": StoredBucket(UNIT, 2**53 + 2, UNIT).encoded(),
    "the largest time": StoredBucket(UNIT, 2**56 - 1, UNIT).encoded(),
    "the doubles of another form": b"\x01" + struct.pack("<dddH", UNIT, NOW, UNIT, 0),
    "a megabyte": b"x" * 1_000_000,
}


def check_that_it_heals(agent: Agent, redis: RedisServer, key: bytes) -> None:
    before = agent.metric("redis_healed_total")
    healed = agent.allow("api", "k", 4)
    assert healed == (True, 10, 6, 0, 4 * HOUR // 10, "ok", "store", "", HOUR, HOUR // 10)
    assert redis.bucket(key)[:3:2] == (UNIT, 4 * UNIT)
    assert 0 < redis.call("TTL", key) <= 4 * 360 + 60
    assert agent.metric("redis_healed_total") == before + 1
    assert agent.allow("api", "k", 6).allowed
    assert agent.allow("api", "k").verdict == "limited"
    assert agent.metric("redis_healed_total") == before + 1


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_heals_with_the_first_charge(agent: Agent, redis: RedisServer, name: str) -> None:
    key = key_of(agent, redis)
    redis.call("SET", key, GARBAGE[name])
    assert agent.peek("api", "k")[:7] == (True, 10, 10, 0, 0, "ok", "store")
    check_that_it_heals(agent, redis, key)


FOREIGN_TYPES: dict[str, Callable[[RedisServer, bytes], object]] = {
    "list": lambda redis, key: redis.call("RPUSH", key, "a", "b"),
    "hash": lambda redis, key: redis.call("HSET", key, "a", "b"),
    "set": lambda redis, key: redis.call("SADD", key, "a"),
    "sorted set": lambda redis, key: redis.call("ZADD", key, "1", "a"),
    "stream": lambda redis, key: redis.call("XADD", key, "*", "a", "b"),
}


@pytest.mark.parametrize("kind", FOREIGN_TYPES)
def test_a_value_of_another_type_heals_with_the_first_charge(agent: Agent, redis: RedisServer, kind: str) -> None:
    key = key_of(agent, redis)
    FOREIGN_TYPES[kind](redis, key)
    assert agent.peek("api", "k")[:7] == (True, 10, 10, 0, 0, "ok", "store")
    check_that_it_heals(agent, redis, key)


def test_any_value_at_all_is_answered_and_leaves_a_key_that_works(agent: Agent, redis: RedisServer) -> None:
    dice = random.Random(4711)
    key = key_of(agent, redis)
    now = redis_time(redis)
    likely = [0, 1, 2, UNIT, UNIT + 1, now, now + 10**15, 2**52, 2**52 + 1, 2**53, 2**56 - 1]
    seconds = [0, now // 1_000_000, 2**40 - 1]  # none that one charge arrives at: that leaves the TTL as it is
    for _ in range(300):
        numbers = [dice.choice([*likely, dice.getrandbits(56), dice.getrandbits(53)]) for _ in range(3)]
        value = StoredBucket(*numbers, dice.choice(seconds)).encoded()
        redis.call("SET", key, value)
        decision = agent.allow("api", "k")
        assert decision.source == "store", value.hex()
        assert 0 <= decision.remaining <= 10
        assert decision.retry_after_us >= 0
        assert decision.reset_after_us < 2**53
        assert 0 < redis.call("TTL", key) <= 400 * 86_400, f"{numbers}: it is gone some day"


# Lifetimes


def test_a_value_without_ttl_gets_one_with_the_next_charge(agent: Agent, redis: RedisServer) -> None:
    agent.allow("api", "k")
    key = redis.only_key()
    redis.call("PERSIST", key)
    assert agent.allow("api", "k").remaining == 8, "its use still counts"
    assert 0 < redis.call("TTL", key) <= 2 * 360 + 60


def test_a_value_without_ttl_gets_one_with_the_next_refusal(agent: Agent, redis: RedisServer) -> None:
    agent.allow("api", "k", 10)
    key = redis.only_key()
    redis.call("PERSIST", key)
    before, healed = redis.bucket(key), agent.metric("redis_healed_total")
    refused = agent.allow("api", "k")
    assert (refused.allowed, refused.verdict) == (False, "limited")
    assert refused.reset_after_us / 1e6 <= redis.call("TTL", key) + 1 <= 3600 + 61
    assert redis.bucket(key) == before
    assert agent.metric("redis_healed_total") == healed + 1


def test_a_ttl_that_is_too_short_is_prolonged_before_use_is_forgotten(agent: Agent, redis: RedisServer) -> None:
    # Another agent wrote it under a faster rate; under this one the use counts for longer.
    agent.allow("api", "k", 10)
    key = redis.only_key()
    redis.call("EXPIRE", key, 20)
    refused = agent.allow("api", "k")
    assert refused.verdict == "limited"
    assert redis.call("TTL", key) >= refused.reset_after_us / 1e6 - 1


def test_a_ttl_that_is_too_long_ends_with_the_next_charge(agent: Agent, redis: RedisServer) -> None:
    agent.allow("api", "k")
    key = redis.only_key()
    redis.call("EXPIRE", key, 10 * YEAR_SECONDS)
    agent.allow("api", "k")
    assert redis.call("TTL", key) <= 2 * 360 + 60


def test_a_hot_keys_ttl_stays_within_a_second_of_what_it_needs(rack: Rack, redis: RedisServer) -> None:
    agent = rack.start('[limits.fast]\nrate = "1000/s"\nburst = 100000\ndeadline = "5s"', redis=redis.config() + ASK_ALWAYS)
    agent.wait_for_redis()
    redis.call("CONFIG", "RESETSTAT")
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        decision = agent.allow("fast", "k")
        left = redis.call("PTTL", redis.only_key()) / 1000
        assert decision.reset_after_us / 1e6 + 58.9 <= left <= decision.reset_after_us / 1e6 + 61.1
    calls = redis.calls()
    assert 2 <= calls["setex"] <= 8, "it was set anew about once a second"
    assert calls["setrange"] > 10 * calls["setex"], "and overwritten in place else"


def test_a_value_from_the_future_grants_nothing_extra_and_holds_nobody_up_for_ever(
    agent: Agent, redis: RedisServer
) -> None:
    # As after a failover to a server whose clock was an hour behind.
    key = key_of(agent, redis)
    future = redis_time(redis) + HOUR
    redis.call("SET", key, StoredBucket(UNIT, future, 8 * UNIT).encoded(), "EX", 1000)
    assert agent.peek("api", "k").remaining == 2
    granted = agent.allow("api", "k", 2)
    assert (granted.allowed, granted.remaining) == (True, 0)
    assert redis.bucket(key).last == future, "it never decreases"
    refused = agent.allow("api", "k")
    assert (refused.allowed, refused.retry_after_us) == (False, HOUR // 10), "no longer than one refill"
    assert 3600 < redis.call("TTL", key) <= 3600 + 60


def test_use_in_another_unit_is_converted_and_never_minted(agent: Agent, redis: RedisServer) -> None:
    key = key_of(agent, redis)
    # 7.5 permits in units of a microsecond's tenth: 8 whole ones are missing, rounded up.
    redis.call("SET", key, StoredBucket(10, redis_time(redis), 75).encoded(), "EX", 1000)
    assert agent.peek("api", "k").remaining == 2
    assert agent.allow("api", "k", 2).allowed
    assert redis.bucket(key).unit == UNIT


def test_data_that_redis_lost_is_a_full_bucket(agent: Agent, redis: RedisServer) -> None:
    agent.allow("api", "k", 10)
    redis.call("FLUSHALL")
    assert agent.allow("api", "k", 10).source == "store"


def test_a_value_that_would_last_for_ever_is_noticed_after_its_test(redis: RedisServer) -> None:
    redis.call("SET", "allowd:lasting", "x")
    redis.call("SET", "allowd:fleeting", "x", "EX", 1000)
    redis.plant(b"allowd:planted", b"x")
    assert redis.keys_without_ttl() == {b"allowd:lasting"}
    redis.call("FLUSHALL")
