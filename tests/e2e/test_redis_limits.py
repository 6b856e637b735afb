# SPDX-License-Identifier: MIT
"""Every kind of limit on a real Redis: one budget for all agents, values that heal, rights, fleets amid a change.

ALLOWD_E2E_LONG=1 in the environment asks longer.
"""

from __future__ import annotations

import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from daemon import ASK_ALWAYS, Agent, Rack, is_sanitized
from processes import wait_until
from redis_server import RedisServer, needs, version
from rpc import AdminClient, Client, Decision, request

IS_LONG = os.environ.get("ALLOWD_E2E_LONG") == "1"
DAY_SECONDS = 86_400
PATIENT = 'deadline = "10s"\non_failure = "deny"\n'


class Kind(NamedTuple):
    """One way to write a limit that holds 10."""

    text: str
    format: int  # that its values begin with; 0 for a bare number
    takes_refunds: bool = True


TIERS = (
    '[ { name = "day", rate = "10/day" }, { name = "week", rate = "90/week", algorithm = "fixed_window" },'
    ' { name = "month", rate = "900/30d", algorithm = "sliding_window" } ]'
)
KINDS = {
    "token_bucket": Kind('rate = "10/day"', 1),
    "fixed_window": Kind('rate = "10/day"\nalgorithm = "fixed_window"', 2),
    "clock_window": Kind('rate = "10/100d"\nalgorithm = "fixed_window"\nalign = "clock"', 2),
    "sliding_window": Kind('rate = "10/100d"\nalgorithm = "sliding_window"', 2),
    "sliding_log": Kind('rate = "10/day"\nalgorithm = "sliding_log"', 3),
    "tiers": Kind(f"tiers = {TIERS}", 2),
    "counter": Kind('rate = "10/day"\nalgorithm = "counter"', 0, takes_refunds=False),
}
LIMITS = "\n".join(
    f"[limits.{name}]\n{kind.text}\n{PATIENT}{'refund = true' if kind.takes_refunds else ''}"
    for name, kind in KINDS.items()
)
SCRIPTED = [name for name in KINDS if name != "counter"]


def started(rack: Rack, redis: str, limits: str = LIMITS) -> Agent:
    agent = rack.start(limits, redis=redis + ASK_ALWAYS if redis else "")
    agent.wait_for_redis()
    return agent


@pytest.fixture(scope="module")
def agents(shared_rack: Rack, shared_redis: RedisServer) -> list[Agent]:
    return [started(shared_rack, shared_redis.config()) for _ in range(2)]


@pytest.fixture
def redis(agents: list[Agent], shared_redis: RedisServer) -> RedisServer:
    """The shared Redis, empty."""
    shared_redis.call("FLUSHALL")
    return shared_redis


@pytest.fixture
def client(agents: list[Agent], redis: RedisServer) -> Iterator[Client]:
    with agents[0].connect() as connected:
        yield connected


def key_of(client: Client, redis: RedisServer, limit: str) -> bytes:
    """The Redis key of that limit's key `k`, with nothing in it."""
    client.allow(limit, "k")
    key = redis.only_key()
    redis.call("DEL", key)
    return key


def how_it_counts(agent: Agent) -> str:
    """What `shards` says of counters."""
    (shard,) = agent.shards().values()
    return shard["counter"]


# One budget


@pytest.mark.parametrize("limit", KINDS)
def test_two_agents_share_one_budget_exactly(agents: list[Agent], redis: RedisServer, limit: str) -> None:
    with agents[0].connect() as one, agents[1].connect() as other:
        for left in range(9, -1, -1):
            decision = (one, other)[left % 2].allow(limit, "k")
            assert decision[:3] == (True, 10, left)
            assert decision[5:7] == ("ok", "store")
        for client in (one, other, one):
            assert client.allow(limit, "k")[5:7] == ("limited", "store")
            assert client.allow(limit, "other key", 3).allowed


@pytest.mark.parametrize("limit", SCRIPTED)
def test_a_refusal_leaves_the_stored_bytes_as_they_were(
    agents: list[Agent], redis: RedisServer, limit: str
) -> None:
    with agents[0].connect() as one, agents[1].connect() as other:
        one.allow(limit, "k", 8)
        key = redis.only_key()
        before = redis.call("GET", key), redis.call("DUMP", key)
        for cost in (3, 9, 10, 11, 3):
            assert not one.allow(limit, "k", cost).allowed
            assert not other.allow(limit, "k", cost).allowed
            assert other.peek(limit, "k", 2).allowed
            assert one.allow(limit, "k", 0).allowed
        assert (redis.call("GET", key), redis.call("DUMP", key)) == before
        assert other.allow(limit, "k", 2)[:3] == (True, 10, 0)
        assert redis.call("GET", key) != before[0]


@pytest.mark.parametrize("limit", KINDS)
def test_a_peek_writes_nothing(client: Client, redis: RedisServer, limit: str) -> None:
    assert client.peek(limit, "k", 3)[:3] == (True, 10, 10)
    assert client.allow(limit, "k", 0)[:3] == (True, 10, 10)
    assert redis.keys() == []


# Values


def part(a: int, b: int, c: int, second: int) -> bytes:
    """One tier's part of a value, of a tier that nobody has."""
    numbers = (a.to_bytes(7, "little"), b.to_bytes(7, "little"), c.to_bytes(7, "little"), second.to_bytes(5, "little"))
    return b"identity" + b"".join(numbers)


GARBAGE = {
    "text": b"hello",
    "nothing": b"",
    "a huge number": b"1e308",
    "nan": b"nan",
    "a negative number": b"-5",
    "the most negative number": b"-9223372036854775808",
    "a fraction": b"1.5",
    "a number with a blank": b" 7",
    "a number beyond counting": b"9223372036854775807",
    "more digits than a number has": b"9" * 40,
    "a blob": random.Random(1).randbytes(61),
    "zeros": bytes(35),
    "a megabyte": b"x" * 1_000_000,
    "the format of a bucket alone": b"\x01",
    "a value of tiers cut short": b"\x02" + part(1, 2, 3, 4)[:-1],
    "a value of tiers with a byte too many": b"\x02" + part(1, 2, 3, 4) + b"x",
    "a value of tiers with numbers beyond all": b"\x02" + part(2**56 - 1, 2**56 - 1, 2**56 - 1, 2**40 - 1),
    "a value of a log cut short": b"\x03" + b"1234567",
    "a value of a log with numbers beyond all": b"\x03" + b"\xff" * 11,
    "doubles": b"\x01" + struct.pack("<dddH", 1, 2, 3, 0),
}
FOREIGN_TYPES: dict[str, Callable[[RedisServer, bytes], object]] = {
    "list": lambda redis, key: redis.call("RPUSH", key, "a", "b"),
    "hash": lambda redis, key: redis.call("HSET", key, "a", "b"),
    "set": lambda redis, key: redis.call("SADD", key, "a"),
    "sorted set": lambda redis, key: redis.call("ZADD", key, "1", "a"),
    "stream": lambda redis, key: redis.call("XADD", key, "*", "a", "b"),
}


def is_garbage_to(limit: str, name: str) -> bool:
    """A newer format is no garbage; what a limit could have written itself is none either."""
    value = GARBAGE[name]
    own = KINDS[limit].format
    return not (own and value and own < value[0] < 32)


def check_that_it_heals(agent: Agent, client: Client, redis: RedisServer, key: bytes, limit: str) -> None:
    before = agent.metric("redis_healed_total")
    assert client.allow(limit, "k", 4)[:4] == (True, 10, 6, 0)
    assert client.peek(limit, "k").remaining == 6
    assert redis.call("TYPE", key) == "string"
    assert 0 < redis.call("TTL", key) <= 400 * DAY_SECONDS
    assert client.allow(limit, "k", 6)[:3] == (True, 10, 0)
    assert client.allow(limit, "k")[5:7] == ("limited", "store")
    assert agent.metric("redis_healed_total") == before + 1
    assert agent.metric("redis_errors_total") == 0


@pytest.mark.parametrize(
    ("limit", "name"), [(limit, name) for limit in KINDS for name in GARBAGE if is_garbage_to(limit, name)]
)
def test_garbage_heals_with_the_first_charge(
    agents: list[Agent], client: Client, redis: RedisServer, limit: str, name: str
) -> None:
    key = key_of(client, redis, limit)
    redis.call("SET", key, GARBAGE[name])
    assert client.peek(limit, "k")[:7] == (True, 10, 10, 0, 0, "ok", "store")
    check_that_it_heals(agents[0], client, redis, key, limit)


@pytest.mark.parametrize("kind", FOREIGN_TYPES)
@pytest.mark.parametrize("limit", KINDS)
def test_a_value_of_another_type_heals_with_the_first_charge(
    agents: list[Agent], client: Client, redis: RedisServer, limit: str, kind: str
) -> None:
    key = key_of(client, redis, limit)
    FOREIGN_TYPES[kind](redis, key)
    assert client.peek(limit, "k")[:7] == (True, 10, 10, 0, 0, "ok", "store")
    check_that_it_heals(agents[0], client, redis, key, limit)


@pytest.mark.parametrize("limit", KINDS)
def test_a_value_without_ttl_gets_one_with_the_next_charge_and_its_use_counts(
    client: Client, redis: RedisServer, limit: str
) -> None:
    client.allow(limit, "k", 3)
    key = redis.only_key()
    redis.call("PERSIST", key)
    assert client.allow(limit, "k", 3)[:3] == (True, 10, 4)
    assert 0 < redis.call("TTL", key) <= 400 * DAY_SECONDS


@pytest.mark.parametrize("limit", KINDS)
def test_a_value_without_ttl_gets_one_with_the_next_refusal(
    agents: list[Agent], client: Client, redis: RedisServer, limit: str
) -> None:
    client.allow(limit, "k", 10)
    key = redis.only_key()
    redis.call("PERSIST", key)
    value = redis.call("GET", key)
    refused = client.allow(limit, "k")
    assert refused.verdict == "limited"
    assert 0 < redis.call("TTL", key) <= 400 * DAY_SECONDS
    if limit != "counter":
        assert redis.call("GET", key) == value
        assert refused.retry_after_us / 1e6 - 1 <= redis.call("TTL", key), "the use outlives the wait"


@pytest.mark.parametrize("limit", KINDS)
def test_a_value_that_lives_too_long_is_no_matter_for_long(client: Client, redis: RedisServer, limit: str) -> None:
    client.allow(limit, "k")
    key = redis.only_key()
    redis.call("EXPIRE", key, 3000 * DAY_SECONDS)
    client.allow(limit, "k")
    if limit != "counter":  # of which Redis's TTL is the clock
        assert redis.call("TTL", key) <= 400 * DAY_SECONDS


def newer_values(limit: str) -> list[bytes]:
    following = bytes([KINDS[limit].format + 1])
    return [following, following + bytes(26), b"\x1f" + b"x" * 34, b"\x1fnew" * 100]


@pytest.mark.parametrize("limit", SCRIPTED)
def test_a_newer_format_is_left_byte_for_byte_and_the_policy_answers(
    agents: list[Agent], client: Client, redis: RedisServer, limit: str
) -> None:
    key = key_of(client, redis, limit)
    for value in newer_values(limit):
        redis.call("SET", key, value, "EX", 1000)
        before = agents[0].metric("redis_unknown_format_total")
        assert client.allow(limit, "k")[5:7] == ("unavailable", "fallback")
        assert client.allow(limit, "k", 10)[5:7] == ("unavailable", "fallback")
        assert client.peek(limit, "k")[6] == "fallback"
        assert client.refund(limit, "k", 3)[6] == "fallback"
        assert client.allow(limit, "k", 3, force=True)[6] == "fallback"
        assert redis.call("GET", key) == value
        assert 900 < redis.call("TTL", key) <= 1000
        assert agents[0].metric("redis_unknown_format_total") == before + 5
    assert client.allow(limit, "another").allowed
    assert not agents[0].ask("info")["degraded"], "one key is not the whole store"


def test_every_key_has_a_ttl_whatever_was_asked(agents: list[Agent], redis: RedisServer) -> None:
    dice = random.Random(17)
    with agents[0].connect() as one, agents[1].connect() as other:
        for _ in range(1500):
            client = dice.choice((one, other))
            limit, key, cost = dice.choice([*KINDS]), f"k{dice.randrange(8)}", dice.choice([0, 1, 1, 2, 3, 7, 10, 11])
            op = dice.choices(["allow", "peek", "refund", "force"], [6, 1, 2, 1])[0]
            if op == "allow":
                client.allow(limit, key, cost)
            elif op == "peek":
                client.peek(limit, key, cost)
            elif op == "force":
                client.allow(limit, key, cost, force=True)
            elif KINDS[limit].takes_refunds:
                client.refund(limit, key, cost)
    keys = redis.keys()
    assert len(keys) > 4 * len(KINDS)
    for key in keys:
        assert 0 < redis.call("TTL", key) <= 400 * DAY_SECONDS, key


# Counters


def config_of_an_older(redis: RedisServer) -> str:
    """For an agent that learns nothing of the server's version, unless it is older in truth."""
    if version() < (7,):
        return redis.config()
    redis.call("ACL", "SETUSER", "old", "on", ">pa55", "~*", "&*", "+@all", "-info")
    return f'url = "redis://old:pa55@127.0.0.1:{redis.port}"'


@pytest.fixture(params=["multi", "script"])
def counting(request: pytest.FixtureRequest, rack: Rack, redis: RedisServer) -> Agent:
    """An agent that counts in a transaction, and one that takes its server for too old."""
    if request.param == "multi":
        needs(7)
        agent = started(rack, redis.config())
    else:
        agent = started(rack, config_of_an_older(redis))
    assert how_it_counts(agent) == request.param
    return agent


def test_a_counter_needs_no_script_on_this_redis(agents: list[Agent], client: Client, redis: RedisServer) -> None:
    needs(7)
    client.allow("counter", "warm")
    assert how_it_counts(agents[0]) == "multi"
    redis.call("CONFIG", "RESETSTAT")
    for _ in range(12):
        client.allow("counter", "k")
    client.peek("counter", "k")
    calls = redis.calls()
    assert "evalsha" not in calls and "eval" not in calls
    assert calls["incrby"] == calls["pexpire"] == 12
    assert calls["multi"] == calls["exec"] == 13


def test_a_counter_is_scripted_where_the_server_may_be_older(rack: Rack, redis: RedisServer) -> None:
    agent = started(rack, config_of_an_older(redis))
    assert how_it_counts(agent) == "script"
    redis.call("CONFIG", "RESETSTAT")
    with agent.connect() as client:
        assert [client.allow("counter", "k").allowed for _ in range(12)] == [True] * 10 + [False] * 2
    calls = redis.calls()
    assert calls["evalsha"] == 12
    assert "multi" not in calls
    assert agent.metric("redis_errors_total") == 0


def test_a_counter_counts_refused_hits_as_well(counting: Agent, redis: RedisServer) -> None:
    with counting.connect() as client:
        first = client.allow("counter", "k", 8)
        assert first[:3] == (True, 10, 2)
        assert first.window_us == DAY_SECONDS * 1_000_000
        key = redis.only_key()
        left = redis.call("PTTL", key)
        assert 0 < left <= DAY_SECONDS * 1000
        refused = client.allow("counter", "k", 5)
        assert (refused.allowed, refused.remaining, refused.verdict) == (False, 0, "limited")
        assert redis.call("GET", key) == b"13"
        assert redis.call("PTTL", key) <= left, "the window does not move"
        assert 0 < refused.retry_after_us <= left * 1000
        assert not client.allow("counter", "k", 1).allowed
        assert redis.call("GET", key) == b"14"
        assert client.allow("counter", "k", 11).verdict == "never"
        assert redis.call("GET", key) == b"14", "what never passes is not asked"


def test_a_counter_begins_anew_when_its_window_is_over(counting: Agent, redis: RedisServer) -> None:
    with counting.connect() as client:
        client.allow("counter", "k", 10)
        assert not client.allow("counter", "k").allowed
        redis.call("PEXPIRE", redis.only_key(), 1)
        wait_until(lambda: redis.keys() == [], "the window is over")
        assert client.allow("counter", "k", 4)[:3] == (True, 10, 6)
        assert redis.call("PTTL", redis.only_key()) > (DAY_SECONDS - 600) * 1000


@pytest.mark.parametrize("name", [*GARBAGE, *FOREIGN_TYPES])
def test_a_counter_heals_either_way(counting: Agent, redis: RedisServer, name: str) -> None:
    with counting.connect() as client:
        key = key_of(client, redis, "counter")
        if name in GARBAGE:
            redis.call("SET", key, GARBAGE[name])
        else:
            FOREIGN_TYPES[name](redis, key)
        check_that_it_heals(counting, client, redis, key, "counter")


def test_a_count_without_ttl_gets_its_window_with_the_next_hit(counting: Agent, redis: RedisServer) -> None:
    with counting.connect() as client:
        key = key_of(client, redis, "counter")
        redis.call("SET", key, "7")
        assert client.allow("counter", "k")[:3] == (True, 10, 2)
        assert 0 < redis.call("PTTL", key) <= DAY_SECONDS * 1000
        redis.call("SET", key, "70")
        assert client.allow("counter", "k").verdict == "limited"
        assert 0 < redis.call("PTTL", key) <= DAY_SECONDS * 1000


# Rights

LISTED = (
    "+auth +select +client|setname +script|load +time +evalsha +mget +set +setex +setrange +pttl +expire +del +get"
    " +incrby +pexpire +zadd +zremrangebyscore +zcount +zrem"
)


@pytest.mark.parametrize("more", ["", "+info +multi +exec"], ids=["script", "multi"])
def test_a_user_with_the_listed_rights_is_enough_for_every_limit(
    rack: Rack, redis: RedisServer, more: str
) -> None:
    if more:
        needs(7)
    rights = f"{LISTED} {more}".split()
    redis.call("ACL", "SETUSER", "few", "reset", "on", ">pa55", "resetchannels", "-@all", "~allowd:*", *rights)
    redis.call("ACL", "LOG", "RESET")
    agent = started(rack, f'url = "redis://few:pa55@127.0.0.1:{redis.port}"')
    assert how_it_counts(agent) == ("multi" if more else "script")
    with agent.connect() as client:
        for limit, kind in KINDS.items():
            assert client.allow(limit, "k", 4)[5:7] == ("ok", "store"), limit
            assert client.allow(limit, "k", 4)[5:7] == ("ok", "store"), limit
            assert client.allow(limit, "k", 3)[5:7] == ("limited", "store"), limit
            assert client.peek(limit, "k")[6] == "store"
            assert client.allow(limit, "k", 9, force=True)[6] == "store"
            if kind.takes_refunds:
                assert client.refund(limit, "k", 3)[6] == "store"
                assert client.refund(limit, "k", 30)[6] == "store"
            assert agent.admin(f"reset {limit} k") == "reset\n"
            key = key_of(client, redis, limit)
            redis.call("RPUSH", key, "garbage")
            assert client.allow(limit, "k", 10)[5:7] == ("ok", "store"), limit
            redis.call("PERSIST", key)
            assert client.allow(limit, "k", 10)[5:7] == ("limited", "store"), limit
            assert redis.call("TTL", key) > 0
            redis.call("FLUSHALL")
    assert agent.metric("redis_errors_total") == 0
    log = (dict(zip(entry[::2], entry[1::2], strict=True)) for entry in redis.call("ACL", "LOG"))
    denied = {entry[b"object"] for entry in log}
    assert denied <= ({b"info"} if not more else set()), denied


def test_a_kind_of_limit_that_fails_beside_others_that_work_does_not_fill_the_log(
    rack: Rack, redis: RedisServer
) -> None:
    redis.call("ACL", "SETUSER", "hampered", "reset", "on", ">pa55", "~*", "+@all", "-incrby")
    agent = started(rack, f'url = "redis://hampered:pa55@127.0.0.1:{redis.port}"')
    with agent.connect() as client:
        for _ in range(200):
            assert client.allow("counter", "k")[5:7] == ("unavailable", "fallback")
            assert client.peek("token_bucket", "k")[5:7] == ("ok", "store")
    # The transaction, then the script in its place; what a permission is wanting for is not asked again soon.
    assert agent.metric("redis_errors_total") == (2 if version() >= (7,) else 1)
    assert 1 <= agent.log().count("counter fails") <= 2, "a line per change of state, not per query"


def test_who_may_not_run_transactions_counts_by_the_script(rack: Rack, redis: RedisServer) -> None:
    needs(7)
    redis.call("ACL", "SETUSER", "hampered", "reset", "on", ">pa55", "~*", "+@all", "-exec")
    agent = started(rack, f'url = "redis://hampered:pa55@127.0.0.1:{redis.port}"')
    assert agent.allow("counter", "k").source == "fallback", "nobody knows whether it counted"
    for _ in range(3):
        assert agent.allow("counter", "k").source == "store"
    assert how_it_counts(agent) == "script"


# Late grants


@pytest.mark.parametrize("limit", SCRIPTED)
def test_what_is_granted_late_to_somebody_who_was_refused_is_given_back_once(
    rack: Rack, redis: RedisServer, limit: str
) -> None:
    hasty = "\n".join(
        f'[limits.{policy}]\n{KINDS[limit].text}\nrefund = true\non_failure = "{policy}"\ndeadline = "300ms"'
        for policy in ("deny", "allow")
    )
    patient = {"deadline_us": 10_000_000}
    agent = started(rack, redis.config(), hasty)
    with agent.connect() as client:
        for policy, key in (("deny", "k"), ("deny", "forced"), ("allow", "k")):
            assert client.allow(policy, key, 3, **patient).remaining == 7
        queries = [
            ("allow", "deny", "k", 4),
            ("peek", "deny", "k", 4),
            ("allow", "allow", "k", 4),
            ("allow", "deny", "forced", 4, {"force": True}),
        ]
        redis.pause()
        try:
            # In one write, and so in one script: what is never sent needs no giving back.
            client.send(b"".join(request(*query, msgid=1000 + number) for number, query in enumerate(queries)))
            replies = client.receive_many(len(queries))
        finally:
            redis.resume()
        assert {reply.result[6] for reply in replies.values()} == {"fallback"}
        assert [replies[1000 + number].result[0] for number in range(4)] == [False, False, True, True]
        wait_until(lambda: agent.metric("late_answers_total") == len(queries), "they have come late")

        def left(policy: str, key: str) -> int:
            return client.allow(policy, key, 0, **patient).remaining

        wait_until(lambda: left("deny", "k") == 7, "it was refused, and is given back")
        assert left("allow", "k") == 3, "it was let pass, and counts"
        assert left("deny", "forced") == 3, "usage that is a fact counts"
    assert agent.metric("redis_given_back_total") == 1


# Reset


@pytest.mark.parametrize("store", ["memory", "redis"])
@pytest.mark.parametrize("limit", KINDS)
def test_reset_forgets_all_that_a_key_has_used(rack: Rack, redis: RedisServer, limit: str, store: str) -> None:
    agent = started(rack, redis.config() if store == "redis" else "")
    with agent.connect() as client:
        for key in ("k", "bystander"):
            client.allow(limit, key, 10)
            assert not client.allow(limit, key).allowed
        assert agent.admin(f"reset {limit} k") == "reset\n"
        assert client.peek(limit, "k").remaining == 10
        assert client.allow(limit, "k", 10).allowed
        assert not client.allow(limit, "k").allowed
        assert not client.allow(limit, "bystander").allowed
        assert agent.admin(f"reset {limit} nobody") == "reset\n"
    assert agent.admin("reset nothing k").startswith("error: unknown_limit: ")
    if store == "redis":
        assert len(redis.keys()) == 2
        agent.admin(f"reset {limit} k")
        assert len(redis.keys()) == 1


def test_reset_forgets_what_a_key_has_used_under_every_kind_of_its_limit(rack: Rack, redis: RedisServer) -> None:
    kinds = {
        "bucket": 'rate = "10/h"',
        "tiers": 'rate = "10/h"\nalgorithm = "fixed_window"',
        "log": 'rate = "10/h"\nalgorithm = "sliding_log"',
        "counter": 'rate = "10/h"\nalgorithm = "counter"',
    }
    overrides = "\noverrides = { l = { rate = \"1/h\", algorithm = \"sliding_log\" }, c = { rate = \"1/h\", algorithm = \"counter\" } }"
    for number, kind in enumerate(kinds.values(), 1):
        agent = rack.start(f"[limits.api]\n{kind}{overrides}", redis=redis.config() + ASK_ALWAYS)
        agent.wait_for_redis()
        with agent.connect() as client:
            for key in ("k", "bystander"):
                assert client.allow("api", key, 10, deadline_us=5_000_000).remaining == 0
        assert len(redis.keys()) == 2 * number, "a kind of state has a key of its own"
    agent = rack.start(f"[limits.api]\n{kinds['bucket']}{overrides}", redis=redis.config() + ASK_ALWAYS)
    wait_until(lambda: agent.metric("redis_up") == 1, "it has its Redis")
    assert agent.admin("reset api k") == "reset\n"
    assert [key.split(b":")[-1] for key in redis.keys()] == [b"bystander"] * 4


def test_reset_says_when_redis_cannot_be_reached(rack: Rack) -> None:
    agent = rack.start(LIMITS, redis='url = "redis://127.0.0.1:1"')
    wait_until(lambda: agent.ask("info")["degraded"], "it has noticed")
    assert agent.admin("reset token_bucket k").startswith("error: unavailable: ")


def test_reset_of_a_redis_that_stands_still_is_answered_and_harms_nobody(rack: Rack, redis: RedisServer) -> None:
    agent = started(rack, redis.config())
    agent.allow("token_bucket", "k", 3)
    with AdminClient(agent.admin_path, timeout=10) as patient:
        redis.pause()
        try:
            patient.send(b"reset token_bucket k\n")
            with AdminClient(agent.admin_path) as hasty:
                hasty.send(b"reset token_bucket k\nreset token_bucket k\n")
            assert agent.answers(), "the loop goes on"
            answer = patient.receive()
        finally:
            redis.resume()
    assert answer.startswith("error: unavailable: ")
    agent.wait_for_redis()
    assert agent.admin("reset token_bucket k") == "reset\n"
    assert agent.allow("token_bucket", "k", 10).allowed


def test_an_end_amid_a_reset_is_a_clean_one(rack: Rack, redis: RedisServer) -> None:
    agent = started(rack, redis.config())
    with AdminClient(agent.admin_path) as admin:
        redis.pause()
        try:
            admin.send(b"reset token_bucket k\n")
            agent.answers()
            agent.stop()
        finally:
            redis.resume()


# Many at once

ROUNDS = 20 if IS_LONG or not is_sanitized() else 4
CALLERS = 64
EACH = 32  # queries of a caller: twice what there is, together
THOUSAND = {
    "token_bucket": 'rate = "1/day"\nburst = 1000',
    "fixed_window": 'rate = "1000/day"\nalgorithm = "fixed_window"',
    "sliding_window": 'rate = "1000/day"\nalgorithm = "sliding_window"',
    "sliding_log": 'rate = "1000/day"\nalgorithm = "sliding_log"',
    "counter": 'rate = "1000/day"\nalgorithm = "counter"',
    "tiers": 'tiers = [ { name = "a", rate = "1/day", burst = 1000 },'
    ' { name = "b", rate = "1500/day", algorithm = "fixed_window" } ]',
}


@pytest.fixture(scope="module")
def fleet(shared_rack: Rack, shared_redis: RedisServer) -> list[Agent]:
    # Nothing comes late here: what comes late is given back, and somebody else may have been refused meanwhile.
    policy = 'deadline = "1s"\non_failure = "deny"'
    limits = "\n".join(f"[limits.{name}]\n{text}\n{policy}" for name, text in THOUSAND.items())
    agents = [shared_rack.start(limits, redis=shared_redis.config(prefix="fleet")) for _ in range(4)]
    for agent in agents:
        agent.wait_for_redis()
    return agents


def ask_together(fleet: list[Agent], limit: str, key: str) -> list[Decision]:
    """The decisions of many callers that all begin at once, each with several queries open."""
    start = threading.Barrier(CALLERS)
    decisions: list[Decision] = []

    def call(agent: Agent) -> None:
        with agent.connect() as client:
            start.wait()
            for _ in range(EACH // 8):
                client.send(b"".join(request("allow", limit, key, msgid=msgid) for msgid in range(8)))
                decisions.extend(Decision(*reply.result) for reply in client.receive_many(8).values())

    threads = [threading.Thread(target=call, args=(fleet[number % len(fleet)],)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return decisions


@pytest.mark.parametrize("round_number", range(ROUNDS))
@pytest.mark.parametrize("limit", THOUSAND)
def test_callers_of_four_agents_together_get_exactly_what_there_is(
    fleet: list[Agent], limit: str, round_number: int
) -> None:
    decisions = ask_together(fleet, limit, f"round {round_number} {time.monotonic_ns()}")
    assert len(decisions) == CALLERS * EACH
    assert {decision.source for decision in decisions if decision.allowed} == {"store"}
    assert "fallback" not in {decision.source for decision in decisions}
    assert sum(decision.allowed for decision in decisions) == 1000
    assert sorted(decision.remaining for decision in decisions if decision.allowed) == list(range(1000))


# A fleet in the middle of a change

TURNS = 10_000 if IS_LONG or not is_sanitized() else 2_000


class Change(NamedTuple):
    before: str
    after: str
    most: int  # that may pass together
    is_reached: bool = True  # whether that many do pass, when enough is asked


SLOW_CHANGES = {
    "rate": Change('rate = "3/day"\nburst = 50', 'rate = "7/week"\nburst = 50', 50),
    "rate and burst": Change('rate = "11/day"\nburst = 40', 'rate = "1000003/400d"\nburst = 90', 90),
    "burst": Change('rate = "1/day"\nburst = 30', 'rate = "1/day"\nburst = 70', 70),
    "fixed window": Change(
        'rate = "30/day"\nalgorithm = "fixed_window"', 'rate = "70/day"\nalgorithm = "fixed_window"', 70
    ),
    "sliding window": Change(
        'rate = "30/100d"\nalgorithm = "sliding_window"', 'rate = "70/100d"\nalgorithm = "sliding_window"', 70
    ),
    "sliding log": Change(
        'rate = "30/day"\nalgorithm = "sliding_log"', 'rate = "70/day"\nalgorithm = "sliding_log"', 70
    ),
    "counter": Change('rate = "30/day"\nalgorithm = "counter"', 'rate = "70/day"\nalgorithm = "counter"', 70, False),
    "a tier is added": Change(
        'tiers = [ { name = "a", rate = "50/day" } ]',
        'tiers = [ { name = "a", rate = "50/day" }, { name = "b", rate = "20/day" } ]',
        50,
    ),
    "a tier is replaced": Change(
        'tiers = [ { name = "a", rate = "60/day" }, { name = "b", rate = "50/day" } ]',
        'tiers = [ { name = "a", rate = "60/day" }, { name = "c", rate = "50/week" } ]',
        60,
    ),
    "tiers have other numbers": Change(
        'tiers = [ { name = "a", rate = "1/day", burst = 30 }, { name = "b", rate = "80/week",'
        ' algorithm = "fixed_window" } ]',
        'tiers = [ { name = "b", rate = "70/week", algorithm = "fixed_window" }, { name = "a", rate = "7/100d",'
        " burst = 60 } ]",
        60,
    ),
    "bucket to window": Change('rate = "1/day"\nburst = 30', 'rate = "40/day"\nalgorithm = "fixed_window"', 70),
    "window to log": Change(
        'rate = "30/day"\nalgorithm = "fixed_window"', 'rate = "40/day"\nalgorithm = "sliding_log"', 70
    ),
    "log to counter": Change(
        'rate = "30/day"\nalgorithm = "sliding_log"', 'rate = "40/day"\nalgorithm = "counter"', 70, False
    ),
    "bucket to tiers": Change('rate = "1/day"\nburst = 30', 'tiers = [ { name = "a", rate = "40/day" } ]', 70),
    "first to clock": Change(
        'rate = "30/100d"\nalgorithm = "fixed_window"',
        'rate = "40/100d"\nalgorithm = "fixed_window"\nalign = "clock"',
        70,
    ),
    "fixed to sliding": Change(
        'rate = "30/100d"\nalgorithm = "fixed_window"', 'rate = "40/100d"\nalgorithm = "sliding_window"', 70
    ),
}


def pair(rack: Rack, redis: RedisServer, before: str, after: str) -> tuple[Agent, Agent]:
    one, other = (
        started(rack, redis.config(), f"[limits.api]\n{text}\n{PATIENT}") for text in (before, after)
    )
    return one, other


@pytest.mark.parametrize("name", SLOW_CHANGES)
def test_agents_amid_a_change_admit_no_more_than_the_laxer_one(rack: Rack, redis: RedisServer, name: str) -> None:
    change = SLOW_CHANGES[name]
    dice = random.Random(name)
    agents = pair(rack, redis, change.before, change.after)
    admitted = 0
    with agents[0].connect() as one, agents[1].connect() as other:
        for _ in range(TURNS):
            client, cost = dice.choice((one, other)), dice.choice([1, 1, 2, 3])
            decision = client.allow("api", "k", cost)
            assert decision.source == "store"
            admitted += cost if decision.allowed else 0
            assert admitted <= change.most
    assert admitted > 0
    if change.is_reached:
        assert admitted == change.most
    (first_key, *_) = redis.keys()
    assert redis.call("TTL", first_key) > 0


class Fast(NamedTuple):
    before: str
    after: str
    burst: float
    rate: float  # a second


FAST_CHANGES = {
    "rate": Fast('rate = "300/s"\nburst = 20', 'rate = "999/7s"\nburst = 20', 20, 300),
    "burst": Fast('rate = "300/s"\nburst = 5', 'rate = "300/s"\nburst = 40', 40, 300),
    "both": Fast('rate = "300/s"\nburst = 10', 'rate = "97/s"\nburst = 35', 35, 300),
    "tiers": Fast(
        'tiers = [ { name = "a", rate = "300/s", burst = 10 }, { name = "b", rate = "500/s", burst = 60 } ]',
        'tiers = [ { name = "a", rate = "97/s", burst = 35 }, { name = "c", rate = "400/s", burst = 60 } ]',
        35,
        300,
    ),
}


@pytest.mark.parametrize("name", FAST_CHANGES)
def test_agents_amid_a_change_mint_nothing_in_any_time(rack: Rack, redis: RedisServer, name: str) -> None:
    change = FAST_CHANGES[name]
    dice = random.Random(name)
    agents = pair(rack, redis, change.before, change.after)
    slack = 1 + change.rate * 0.01  # for the error of the measured clock
    admitted, lowest, seen = 0, float("inf"), 0
    with agents[0].connect() as one, agents[1].connect() as other:
        for _ in range(TURNS):
            client, cost = dice.choice((one, other)), dice.choice([1, 1, 2, 3])
            lowest = min(lowest, admitted - change.rate * time.monotonic())
            if client.allow("api", "k", cost).allowed:
                admitted += cost
                seen += 1
                # From any earlier query to this answer no more has passed than the laxer one lets pass.
                assert admitted - change.rate * time.monotonic() - lowest <= change.burst + slack
    assert seen > 20


# Bursts

BURSTS = 200 if IS_LONG else 40


def test_memory_and_redis_answer_bursts_of_mixed_queries_alike(rack: Rack, redis: RedisServer) -> None:
    # Queries of one write meet in one script, in which keys occur several times and limits alternate.
    dice = random.Random(99)
    on_redis, on_memory = started(rack, redis.config()), started(rack, "")
    with on_redis.connect() as one, on_memory.connect() as other:
        for burst in range(BURSTS):
            queries: list[tuple[Any, ...]] = []
            for _ in range(dice.choice([2, 20, 150])):
                limit, key = dice.choice([*KINDS]), f"k{burst % 10} {dice.randrange(2)}"
                cost, op = dice.choice([0, 1, 1, 2, 4, 10]), dice.choices(["allow", "peek", "refund"], [5, 1, 2])[0]
                if op == "refund" and not KINDS[limit].takes_refunds:
                    op = "peek"
                forced = op == "allow" and dice.random() < 0.2
                queries.append((op, limit, key, cost, *([{"force": True}] if forced else [])))
            sent = b"".join(request(*query, msgid=number) for number, query in enumerate(queries))
            one.send(sent)
            other.send(sent)
            theirs, ours = one.receive_many(len(queries)), other.receive_many(len(queries))
            for number, query in enumerate(queries):
                left, right = Decision(*theirs[number].result), Decision(*ours[number].result)
                where = f"burst {burst}, {number}: {query}: {left} on Redis, {right} on memory"
                if left.source == "local":  # those before it leave too little, whatever Redis says
                    assert (left.allowed, right.allowed) == (False, False), where
                    continue
                assert (left[:3], left.verdict, left.tier) == (right[:3], right.verdict, right.tier), where
                assert (left.retry_after_us > 0) == (right.retry_after_us > 0), where
                assert left.source == "store", where


# Exactness in time

SHORT = """
[limits.log]
rate = "20/200ms"
algorithm = "sliding_log"
deadline = "10s"
on_failure = "deny"

[limits.window]
rate = "20/200ms"
algorithm = "fixed_window"
deadline = "10s"
on_failure = "deny"
"""
WINDOW = 0.2  # seconds
HELD = 20


class Grant(NamedTuple):
    asked_at: float
    answered_at: float


def grants_of(agents: list[Agent], limit: str, seconds: float) -> list[Grant]:
    """What passes of agents that are asked in turn, without a pause."""
    grants = []
    with agents[0].connect() as one, agents[1].connect() as other:
        end = time.monotonic() + seconds
        while (asked_at := time.monotonic()) < end:
            if one.allow(limit, "k").allowed:
                grants.append(Grant(asked_at, time.monotonic()))
            one, other = other, one
    return grants


@pytest.mark.parametrize("store", ["memory", "redis"])
@pytest.mark.parametrize(("limit", "most"), [("log", HELD), ("window", 2 * HELD)])
def test_no_interval_of_its_length_admits_more_than_a_window_may(
    rack: Rack, redis: RedisServer, store: str, limit: str, most: int
) -> None:
    if store == "redis":
        agents = [started(rack, redis.config(), SHORT) for _ in range(2)]
    else:
        agents = [started(rack, "", SHORT)] * 2
    grants = grants_of(agents, limit, 2.0)
    error = 0.01  # of the measured clocks
    for first, beyond in zip(grants, grants[most:], strict=False):
        assert beyond.answered_at - first.asked_at >= WINDOW - error
    windows = (grants[-1].answered_at - grants[0].asked_at) / WINDOW
    assert 3 * HELD <= len(grants) <= HELD * (windows + 2), "what comes back is given out again"
