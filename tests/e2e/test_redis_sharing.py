# SPDX-License-Identifier: MIT
"""One Redis, shared: agents, users, databases, and what is written there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from daemon import ASK_ALWAYS, Agent, Rack
from processes import wait_until
from redis_server import RedisServer
from rpc import AdminClient, Client

LIMITS = """
[limits.api]
rate = "3/h"
on_failure = "deny"
deadline = "5s"

[limits.year]
rate = "1/300d"
burst = 10
on_failure = "deny"
deadline = "5s"

[limits.fast]
rate = "1000/s"
on_failure = "deny"
deadline = "5s"
"""
HOUR = 3_600_000_000  # µs


def start(rack: Rack, redis: str, limits: str = LIMITS) -> Agent:
    """An agent that is connected to its Redis."""
    agent = rack.start(limits, redis=redis + ASK_ALWAYS if redis else "")
    agent.wait_for_redis()
    return agent


@pytest.fixture
def pair(rack: Rack, redis: RedisServer) -> tuple[Agent, Agent]:
    return start(rack, redis.config()), start(rack, redis.config())


# Sharing


def test_two_agents_on_one_redis_share_one_budget(pair: tuple[Agent, Agent]) -> None:
    a, b = pair
    first = a.allow("api", "k")
    assert first == (True, 3, 2, 0, HOUR // 3, "ok", "store", "", HOUR, HOUR // 3)
    assert a.allow("api", "k")[:7:5] == (True, "ok")
    assert b.peek("api", "k").remaining == 1
    last = b.allow("api", "k")
    assert (last.allowed, last.remaining, last.verdict, last.source) == (True, 0, "ok", "store")
    for agent in (a, b):
        refused = agent.allow("api", "k")
        assert (refused.allowed, refused.verdict, refused.source) == (False, "limited", "store")
        assert 0 < refused.retry_after_us <= HOUR // 3


def test_agents_with_many_clients_never_grant_more_than_the_limit(pair: tuple[Agent, Agent]) -> None:
    keys = [f"k{number}" for number in range(20)]
    clients = [agent.connect() for agent in pair for _ in range(5)]
    for client in clients:
        for key in keys * 3:
            client.post("allow", "api", key)
    granted = dict.fromkeys(keys, 0)
    for client in clients:
        replies = client.receive_many(len(keys) * 3)
        for msgid, reply in replies.items():
            assert reply.result[6] == "store" or not reply.result[0]
            granted[keys[(msgid - 1) % len(keys)]] += reply.result[0]
        client.close()
    assert granted == dict.fromkeys(keys, 3)


def test_an_agent_that_starts_later_finds_what_was_used(rack: Rack, redis: RedisServer) -> None:
    first = start(rack, redis.config())
    first.allow("api", "k", 2)
    first.stop()
    assert start(rack, redis.config()).peek("api", "k").remaining == 1


def test_inline_limits_are_shared_too_and_apart_from_configured_ones(pair: tuple[Agent, Agent]) -> None:
    a, b = pair
    limit = {"name": "api", "rate": "2/h"}
    with a.connect() as client:
        assert client.allow(limit, "k", deadline_us=5_000_000).source == "store"
    with b.connect() as client:
        assert client.allow(limit, "k", deadline_us=5_000_000).remaining == 0
    assert b.peek("api", "k").remaining == 3


def test_agents_with_other_numbers_for_one_limit_cannot_mint_in_turn(rack: Rack, redis: RedisServer) -> None:
    def limits(rate: str, burst: int) -> str:
        return f'[limits.api]\nrate = "{rate}"\nburst = {burst}\non_failure = "deny"\ndeadline = "5s"'

    small = start(rack, redis.config(), limits("1/h", 5))
    large = start(rack, redis.config(), limits("7/day", 10))
    granted = 0
    for turn in range(30):
        granted += (small, large)[turn % 2].allow("api", "k").allowed
    assert granted == 10, "the larger one's capacity, and no more"
    assert not small.allow("api", "k").allowed
    assert small.peek("api", "k").remaining == 0


def test_agents_with_another_prefix_do_not_meet(rack: Rack, redis: RedisServer) -> None:
    a = start(rack, redis.config(prefix="first"))
    b = start(rack, redis.config(prefix="second"))
    assert a.allow("api", "k", 3).allowed
    assert b.allow("api", "k", 3).allowed
    assert [key.split(b":")[0] for key in redis.keys()] == [b"first", b"second"]


# The answers


def test_a_cost_that_can_never_pass_is_not_asked_of_redis(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis.config())
    assert agent.allow("api", "k", 4) == (False, 3, 3, -1, 0, "never", "local", "", HOUR, 0)
    assert agent.metric("redis_questions_total") == 0
    assert redis.keys() == []


def test_a_peek_and_a_refusal_write_nothing(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis.config())
    assert agent.peek("api", "k") == (True, 3, 3, 0, 0, "ok", "store", "", HOUR, 0)
    assert agent.allow("api", "k", 0).allowed
    assert redis.keys() == []
    agent.allow("api", "k", 2)
    before = redis.bucket(redis.only_key())
    assert not agent.allow("api", "k", 2).allowed
    assert agent.allow("api", "k", 0).remaining == 1
    assert redis.bucket(redis.only_key()) == before


def test_keys_of_any_bytes_stay_apart(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis.config())
    keys = [b"", b"\x00", b"\r\n", b"a b", b"{x}", b"}", b"\xff" * 1024, b"$5", "é".encode(), b"k", b"k\x00"]
    with agent.connect() as client:
        for key in keys:
            assert client.allow("api", key, 3).allowed, key
        for key in keys:
            assert not client.allow("api", key).allowed, key
    assert len(redis.keys()) == len(keys)


def test_no_two_pairs_of_limit_and_key_share_a_redis_key(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis.config())
    with agent.connect() as client:
        for name, key in (("a", "b:c"), ("a:b", "c"), ("a:", "b:c"), ("a", ":b:c"), ("1:a", "b:c")):
            limit = {"name": name, "rate": "1/h"}
            assert client.allow(limit, key, deadline_us=5_000_000)[:7:6] == (True, "store"), (name, key)


def test_user_bytes_never_choose_the_slot(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis.config())
    with agent.connect() as client:
        for number in range(50):
            client.allow("api", f"{{same}}{number}")
    tags = {key.split(b"{", 1)[1].split(b"}", 1)[0] for key in redis.keys()}
    assert len(tags) > 40, "what stands between the first braces is ours"


def test_many_keys_in_one_write_are_each_answered_right(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis.config())
    count = 2000
    with agent.connect() as client:
        for number in range(count):
            client.post("allow", "api", f"k{number % 1000}", 1 + number % 3)
        replies = client.receive_many(count)
    for number in range(1000):
        first, second = replies[number + 1].result, replies[number + 1001].result
        assert first[:3] == [True, 3, 2 - number % 3]
        assert first[6] == "store"
        assert second[0] == (1 + (number + 1000) % 3 <= 2 - number % 3)
    assert agent.metric("redis_scripts_total") < count / 4, "they went in batches"


def test_the_same_key_many_times_in_one_write_is_decided_in_order(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis.config())
    with agent.connect() as client:
        for _ in range(100):
            client.post("allow", "api", "k")
        replies = client.receive_many(100)
    assert [replies[msgid].result[0] for msgid in range(1, 101)] == [True] * 3 + [False] * 97


def test_a_peer_that_stops_sending_still_gets_its_replies(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis.config())
    with agent.connect() as client:
        for number in range(200):
            client.post("allow", "api", f"k{number}")
        client.half_close()
        replies = client.receive_many(200)
        assert all(reply.result[0] and reply.result[6] == "store" for reply in replies.values())
        assert client.is_hung_up()


def test_clients_that_leave_while_redis_is_asked_disturb_nobody(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis.config())
    for _ in range(50):
        with agent.connect() as client:
            for number in range(40):
                client.post("allow", "api", f"gone{number}")
    assert agent.allow("api", "k").source == "store"
    wait_until(lambda: agent.metric("connections") == 0, "all have left")
    wait_until(lambda: agent.metric("queries_open") == 0, "nothing is open")


def test_admin_answers_stay_in_order_when_one_has_to_ask_redis(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis.config())
    agent.allow("api", "k", 2)
    with AdminClient(agent.admin_path) as admin:
        admin.send(b"key api k\nping\nkey api other\nping\n")
        answers = [admin.receive() for _ in range(4)]
    assert "remaining: 1\n" in answers[0]
    assert "source: store\n" in answers[0]
    assert answers[1] == "pong\n"
    assert "remaining: 3\n" in answers[2]
    assert answers[3] == "pong\n"


def test_info_says_that_redis_is_the_store(rack: Rack, redis: RedisServer) -> None:
    info = start(rack, redis.config()).ask("info")
    assert (info["store"], info["degraded"]) == ("redis", False)


# What is written


def test_every_key_has_a_ttl_of_its_reset_and_a_minute(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis.config())
    with agent.connect() as client:
        resets = {f"n3:api:{cost}".encode(): client.allow("api", str(cost), cost).reset_after_us for cost in (1, 2, 3)}
        resets |= {b"n4:fast:k": client.allow("fast", "k", 1000).reset_after_us}
        resets |= {b"n4:year:1": client.allow("year", "1", 1).reset_after_us}
        client.allow({"name": "own", "rate": "5/min"}, "k", deadline_us=5_000_000)
        resets |= {b"i3:own:k": 12_000_000}
    ttls = {key.split(b"}:")[1]: redis.call("PTTL", key) * 1000 for key in redis.keys()}
    assert ttls.keys() == resets.keys()
    for key, reset in resets.items():
        assert reset + 30_000_000 < ttls[key] <= reset + 61_000_000, key


def test_no_ttl_is_longer_than_400_days(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis.config())
    assert agent.allow("year", "k", 10).reset_after_us == 3000 * 24 * HOUR
    assert redis.call("TTL", redis.only_key()) in range(400 * 86_400 - 60, 400 * 86_400 + 1)


def test_a_value_is_25_bytes_with_format_unit_time_and_use(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis.config())
    agent.allow("api", "k", 2)
    seconds, micros = map(int, redis.call("TIME"))
    bucket = redis.bucket(redis.only_key())
    assert (bucket.unit, bucket.used) == (HOUR / 3, 2 * HOUR / 3)
    assert abs(bucket.last - (seconds * 1_000_000 + micros)) < 60_000_000


# Ways to reach it


@pytest.mark.parametrize(
    "url",
    [
        "redis://:pa%3A55@127.0.0.1:{port}",
        "redis://default:pa%3A55@127.0.0.1:{port}/0",
        "redis://:pa%3A55@localhost:{port}",
        "unix://:pa%3A55@{path}",
    ],
)
def test_a_password_signs_in(rack: Rack, make_redis: Callable[..., RedisServer], url: str) -> None:
    redis = make_redis(password="pa:55")
    redis.start()
    agent = start(rack, f'url = "{url.format(port=redis.port, path=redis.unix_path)}"')
    assert agent.allow("api", "k").source == "store"
    assert "pa:55" not in agent.log() and "pa%3A55" not in agent.log()


@pytest.mark.parametrize("url", ["redis://127.0.0.1:{port}/5", "unix://{path}?db=5"])
def test_a_database_is_selected(rack: Rack, redis: RedisServer, url: str) -> None:
    agent = start(rack, f'url = "{url.format(port=redis.port, path=redis.unix_path)}"')
    assert agent.allow("api", "k").source == "store"
    assert redis.keys() == [], "nothing is in database 0"
    with redis.client() as client:
        client.call("SELECT", 5)
        assert len(client.call("KEYS", "*")) == 2, "the key, and the set in which agents are counted"


def test_a_unix_socket_works(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, f'url = "unix://{redis.unix_path}"')
    assert agent.allow("api", "k") == (True, 3, 2, 0, HOUR // 3, "ok", "store", "", HOUR, HOUR // 3)


def test_a_user_with_few_rights_is_enough(rack: Rack, redis: RedisServer) -> None:
    rights = "+evalsha +script|load +time +auth +mget +set +setex +setrange +pttl +expire"
    redis.call("ACL", "SETUSER", "limiter", "on", ">pa55", "resetchannels", "-@all", "~allowd:*", *rights.split())
    agent = start(rack, f'url = "redis://limiter:pa55@127.0.0.1:{redis.port}"')
    with agent.connect() as client:
        assert client.allow("api", "k", 3).source == "store"
        assert client.allow("api", "k").verdict == "limited"
        redis.call("PERSIST", redis.only_key())
        assert client.allow("api", "k").verdict == "limited"
    assert redis.call("TTL", redis.only_key()) > 0
    assert agent.metric("redis_errors_total") == 0


def test_the_agent_names_its_connection(rack: Rack, redis: RedisServer) -> None:
    start(rack, redis.config())
    assert b"name=allowd " in redis.call("CLIENT", "LIST")


@pytest.mark.parametrize("key", ["plain", 'q"uo\\te', "\x00"])
def test_the_admin_key_command_asks_redis(rack: Rack, redis: RedisServer, key: str) -> None:
    agent = start(rack, redis.config())
    agent.allow("api", key, 2)
    typed = '"' + "".join(f"\\x{byte:02x}" for byte in key.encode()) + '"'
    answer = agent.admin(f"key api {typed}")
    assert "remaining: 1\n" in answer and "source: store\n" in answer


def grant_all(client: Client, limit: str, key: str) -> int:
    """How many single queries pass in a row."""
    granted = 0
    while client.allow(limit, key).allowed:
        granted += 1
    return granted


def test_a_bucket_refills_in_redis_time(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis.config(), '[limits.api]\nrate = "4/2s"\non_failure = "deny"\ndeadline = "5s"')
    with agent.connect() as client:
        assert grant_all(client, "api", "k") >= 4
        refused = client.peek("api", "k")
        assert 0 < refused.retry_after_us <= 500_000
        wait_until(lambda: client.peek("api", "k").remaining == 4, "it is full again", within=10)
