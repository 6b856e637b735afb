# SPDX-License-Identifier: MIT
"""Several Redis servers that share the keys out by their names."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from daemon import Agent, Rack
from processes import wait_until
from redis_server import RedisServer
from rpc import Client, Decision

LIMITS = """
[limits.api]
rate = "3/h"
on_failure = "deny"
deadline = "5s"

[limits.tiered]
tiers = [ { name = "hour", rate = "3/h", algorithm = "fixed_window" } ]
on_failure = "deny"
deadline = "5s"

[limits.parted]
rate = "9/h"
split = 3
refund = true
on_failure = "deny"
deadline = "5s"
"""
NAMES = ["a", "b", "c"]
KEYS = [f"k{number}" for number in range(120)]
Servers = dict[str, RedisServer]


@pytest.fixture(scope="module")
def running() -> Iterator[Servers]:
    with ExitStack() as cleanup:
        directory = Path(cleanup.enter_context(TemporaryDirectory(prefix="allowd-e2e-")))
        servers = {name: RedisServer(directory / name) for name in NAMES}
        for server in servers.values():
            cleanup.callback(server.close)
            server.start()
        yield servers


@pytest.fixture
def servers(running: Servers) -> Iterator[Servers]:
    """Three that are empty, and a check at the end that all of what is in them goes by itself."""
    for server in running.values():
        server.call("FLUSHALL")
    yield running
    check_ttls(running)


def check_ttls(servers: Mapping[str, RedisServer]) -> None:
    for name, server in servers.items():
        for key in server.keys():
            assert server.call("PTTL", key) > 0, (name, key)


def config(servers: Mapping[str, RedisServer]) -> str:
    shards = ", ".join(f'{{ name = "{name}", url = "{server.url}" }}' for name, server in servers.items())
    return f'shards = [ {shards} ]\nreconnect_max = "250ms"'


def start(rack: Rack, redis: str) -> Agent:
    agent = rack.start(LIMITS, redis=redis)
    agent.wait_for_redis()
    return agent


def charge(agent: Agent, keys: list[str] = KEYS, limit: str = "api") -> None:
    with agent.connect() as client:
        for key in keys:
            assert client.allow(limit, key)[:7:6] == (True, "store"), key


def placed(servers: Mapping[str, RedisServer]) -> dict[str, str]:
    """The name of the server that has the key, by the key that clients name."""
    found: dict[str, str] = {}
    for name, server in servers.items():
        for key in server.keys():
            user_key = key.rsplit(b":", 1)[1].decode()
            assert found.setdefault(user_key, name) == name, "a key is on one server"
    return found


def kept_by(servers: Mapping[str, RedisServer], name: str) -> list[str]:
    return keys_of(placed(servers), name)


def keys_of(owners: Mapping[str, str], name: str) -> list[str]:
    return [key for key, owner in owners.items() if owner == name]


def all_or_none(client: Client, limit: str, *keys: str) -> list[Decision]:
    items = [[limit, key, 1] for key in keys]
    return [Decision(*decision) for decision in client.ask("allow_many", items, "all")]


# Where keys are


def test_keys_are_spread_and_every_agent_finds_them(rack: Rack, servers: Servers) -> None:
    charge(start(rack, config(servers)))
    owners = placed(servers)
    assert sorted(owners) == sorted(KEYS)
    for name in NAMES:
        assert 20 <= list(owners.values()).count(name) <= 60, name
    other = start(rack, config(dict(reversed(servers.items()))))
    with other.connect() as client:
        for key in KEYS:
            assert client.allow("api", key).remaining == 1, "neither agents nor the list's order matter"
    assert placed(servers) == owners


def test_the_documented_places_are_the_real_ones(rack: Rack, servers: Servers) -> None:
    agent = start(rack, config(servers))
    agent.allow("api", "user-1")
    agent.allow("api", "")
    assert servers["c"].keys() == [b"allowd:{755f}:n3:api:user-1"]
    assert servers["b"].keys() == [b"allowd:{f3ac}:n3:api:"]


def test_a_server_may_move_and_the_list_be_sorted_anew(rack: Rack, servers: Servers, redis: RedisServer) -> None:
    first = start(rack, config(servers))
    charge(first)
    first.stop()
    for key in servers["b"].keys():
        redis.call("RESTORE", key, servers["b"].call("PTTL", key), servers["b"].call("DUMP", key))
    moved = {"c": servers["c"], "b": redis, "a": servers["a"]}
    before = placed(moved)
    charge(start(rack, config(moved)))
    assert placed(moved) == before
    assert all(moved[name].bucket(key).permits_used == 2 for name in NAMES for key in moved[name].keys())


def test_a_server_that_joins_a_single_one_takes_its_share_only(rack: Rack, servers: Servers) -> None:
    single = start(rack, f'url = "{servers["a"].url}"')
    assert list(single.shards()) == ["redis"]
    charge(single)
    single.stop()
    both = {"redis": servers["a"], "new": servers["b"]}
    with start(rack, config(both)).connect() as client:
        left = [key for key in KEYS if client.allow("api", key).remaining == 1]
    taken = kept_by({"new": servers["b"]}, "new")
    assert sorted(left + taken) == sorted(KEYS)
    assert 35 <= len(taken) <= 85


# When one does not answer


def test_a_dead_server_takes_only_its_own_keys_along(rack: Rack, servers: Servers) -> None:
    agent = start(rack, config(servers))
    charge(agent)
    owners = placed(servers)
    servers["b"].kill()
    try:
        wait_until(lambda: agent.metric("redis_up") == 2, "the loss is noticed")
        began = time.monotonic()
        with agent.connect() as client:
            for key, owner in owners.items():
                decision = client.peek("api", key)
                if owner != "b":
                    assert (decision.source, decision.remaining) == ("store", 2), key
                    continue
                assert (decision.source, decision.verdict) == ("fallback", "unavailable"), key
                assert 0 < decision.retry_after_us <= 1_000_000, "until that server is tried again"
        assert time.monotonic() - began < 4, "nobody waited for a deadline"
        assert agent.metric("redis_shards") == 3
        assert agent.ask("info")["degraded"]
        assert agent.admin(f"reset api {keys_of(owners, 'b')[0]}").startswith("error: unavailable")
        assert not agent.admin(f"reset api {keys_of(owners, 'a')[0]}").startswith("error")
        refused = "connect: connection refused"
        wait_until(lambda: agent.shards()["b"]["reason"] == refused, "the next attempt has a reason of its own")
        shards = agent.shards()
        assert {name: line["state"] for name, line in shards.items()} == {"a": "up", "b": "down", "c": "up"}
        assert 0 <= int(shards["b"]["reason_age_us"]) < 5_000_000, "that of the last attempt"
        assert {shards[name][column] for name in "ac" for column in ("reason", "reason_age_us")} == {"-"}
    finally:
        servers["b"].start()
    wait_until(lambda: agent.metric("redis_up") == 3, "it is found again")
    assert not agent.ask("info")["degraded"]
    with agent.connect() as client:
        assert {client.peek("api", key).source for key in KEYS} == {"store"}


def test_a_server_that_hangs_holds_up_nobody_else(rack: Rack, servers: Servers) -> None:
    agent = start(rack, config(servers))
    charge(agent)
    owners = placed(servers)
    servers["c"].pause()
    try:
        with agent.connect() as client:
            options = {"deadline_us": 500_000}
            late = {client.post("allow", "api", key, 1, options) for key in keys_of(owners, "c")}
            prompt = {client.post("peek", "api", key) for key in owners if owners[key] != "c"}
            replies = client.receive_many(len(late) + len(prompt))
        assert set(list(replies)[: len(prompt)]) == prompt, "the others came first"
        assert {replies[msgid].result[6] for msgid in prompt} == {"store"}
        assert {replies[msgid].result[6] for msgid in late} == {"fallback"}
    finally:
        servers["c"].resume()
    agent.wait_for_redis()
    with agent.connect() as client:
        wait_until(
            lambda: all(client.peek("api", key).remaining == 2 for key in owners),
            "what was granted too late is given back",
        )


# What reaches into several


def test_all_or_none_over_two_servers_gives_back(rack: Rack, servers: Servers) -> None:
    agent = start(rack, config(servers))
    charge(agent, KEYS[:30])
    owners = placed(servers)
    # Asked in the order of the keys: the one that will refuse comes last.
    poor = max(owners)
    rich = next(key for key in sorted(owners) if owners[key] != owners[poor])
    with agent.connect() as client:
        assert client.allow("api", poor, 2).allowed
        decisions = all_or_none(client, "api", rich, poor)
        assert [decision.allowed for decision in decisions] == [True, False]
        assert decisions[1].verdict == "limited"
        assert client.peek("api", rich).remaining == 2
        assert agent.metric("compensations_total") == 1
        assert client.ask("allow_many", [["api", rich, 1], ["api", other(owners, poor, rich), 1]], "all")
        assert client.peek("api", rich).remaining == 1


def other(owners: Mapping[str, str], *than: str) -> str:
    """A key that is on none of these keys' servers."""
    taken = {owners[key] for key in than}
    return next(key for key in owners if owners[key] not in taken)


def test_all_or_none_on_one_server_is_one_script(rack: Rack, servers: Servers) -> None:
    agent = start(rack, config(servers))
    charge(agent, KEYS[:30])
    first, second, *_ = sorted(kept_by(servers, "a"))
    scripts = agent.metric("redis_scripts_total")
    with agent.connect() as client:
        assert client.allow("api", second, 2).allowed
        decisions = all_or_none(client, "api", first, second)
    assert [decision.allowed for decision in decisions] == [True, False]
    assert agent.metric("redis_scripts_total") == scripts + 2
    assert agent.metric("compensations_total") == 0
    assert agent.peek("api", first).remaining == 2


def test_all_or_none_with_a_key_of_a_dead_server_charges_nothing(rack: Rack, servers: Servers) -> None:
    agent = start(rack, config(servers))
    charge(agent, KEYS[:30])
    owners = placed(servers)
    dead = max(owners)
    alive = next(key for key in sorted(owners) if owners[key] != owners[dead])
    servers[owners[dead]].kill()
    try:
        wait_until(lambda: agent.metric("redis_up") == 2, "the loss is noticed")
        with agent.connect() as client:
            decisions = all_or_none(client, "api", alive, dead)
            assert [decision.verdict for decision in decisions] == ["ok", "unavailable"]
            assert client.peek("api", alive).remaining == 2
    finally:
        servers[owners[dead]].start()


@pytest.mark.parametrize("limit", ["api", "tiered"])
def test_reset_reaches_the_server_of_its_key(rack: Rack, servers: Servers, limit: str) -> None:
    agent = start(rack, config(servers))
    charge(agent, KEYS[:12], limit)
    for key in KEYS[:12]:
        before = placed(servers)
        assert not agent.admin(f"reset {limit} {key}").startswith("error"), key
        assert agent.peek(limit, key).remaining == 3
        del before[key]
        assert placed(servers) == before


def test_shards_has_a_line_for_each_with_its_name_and_no_password(rack: Rack, servers: Servers) -> None:
    named = '{ name = "x-1", url = "redis://user:s3cr3t@127.0.0.1:1/3" }'
    agent = rack.start(LIMITS, redis=config(servers).replace(" ]", f", {named} ]", 1))
    wait_until(lambda: agent.metric("redis_up") == 3, "the others are found")
    told = agent.shards()
    assert list(told) == ["a", "b", "c", "x-1"], "as in the file"
    assert [line["url"] for line in told.values()] == [
        *(server.url for server in servers.values()),
        "redis://127.0.0.1:1/3",
    ]
    assert [line["state"] for line in told.values()] == ["up", "up", "up", "down"]
    assert "s3cr3t" not in agent.log()
    assert "redis x-1 (redis://127.0.0.1:1/3): down" in agent.log()
    assert agent.metric("redis_shards") == 4
    asked = sum(int(line["scripts"]) for line in agent.shards().values())
    assert agent.metric("redis_scripts_total") == asked == 0


# One limit in parts


def test_the_parts_of_a_key_lie_on_different_servers_and_admit_what_the_whole_would(
    rack: Rack, servers: Servers
) -> None:
    first, second = (start(rack, config(servers)) for _ in range(2))
    with first.connect() as one, second.connect() as other:
        decisions = [client.allow("parted", "k") for _ in range(10) for client in (one, other)]
    assert sum(decision.allowed for decision in decisions) == 9
    assert {decision.limit for decision in decisions} == {3}, "each says the size of the part that answered"
    assert all(decision.retry_after_us > 0 for decision in decisions if not decision.allowed)
    keys = {name: server.keys() for name, server in servers.items()}
    assert [len(found) for found in keys.values()] == [1, 1, 1]
    assert len({key.split(b"}")[1] for found in keys.values() for key in found}) == 3


def test_a_cost_above_the_smallest_part_never_passes(rack: Rack, servers: Servers) -> None:
    agent = start(rack, config(servers))
    decision = agent.allow("parted", "k", 4)
    assert (decision.allowed, decision.verdict, decision.limit) == (False, "never", 3)
    assert agent.allow("parted", "k", 3).allowed


def test_a_reset_forgets_all_parts_and_a_peek_shows_the_preferred_one(rack: Rack, servers: Servers) -> None:
    agent = start(rack, config(servers))
    with agent.connect() as client:
        assert client.peek("parted", "k").remaining == 3
        assert [client.allow("parted", "k").allowed for _ in range(10)] == [True] * 9 + [False]
        assert client.peek("parted", "k").remaining == 0
        assert agent.admin("reset parted k") == "reset\n"
        assert [client.allow("parted", "k").allowed for _ in range(10)] == [True] * 9 + [False]


def test_when_a_part_cannot_be_reached_the_others_go_on(rack: Rack, servers: Servers) -> None:
    agent = start(rack, config(servers))
    servers["b"].kill()
    try:
        wait_until(lambda: agent.metric("redis_up") == 2, "the loss is noticed")
        with agent.connect() as client:
            decisions = [client.allow("parted", "k") for _ in range(8)]
        assert [decision.allowed for decision in decisions] == [True] * 6 + [False] * 2
        assert {decision.source for decision in decisions if decision.allowed} == {"store"}
        assert {decision.source for decision in decisions if not decision.allowed} == {"fallback"}, "a part is unknown"
    finally:
        servers["b"].start()
    wait_until(lambda: agent.metric("redis_up") == 3, "it is found again")
    assert [agent.allow("parted", "k").allowed for _ in range(4)] == [True] * 3 + [False]


def test_all_of_an_allow_many_may_hold_limits_in_parts(rack: Rack, servers: Servers) -> None:
    agent = start(rack, config(servers))
    with agent.connect() as client:
        for _ in range(3):
            items = [["parted", "k", 3], ["api", "k", 1]]
            assert [item[0] for item in client.ask("allow_many", items, "all")] == [True, True]
        refused = client.ask("allow_many", [["parted", "k", 1], ["api", "other", 1]], "all")
        assert [item[0] for item in refused] == [False, True]
        assert client.peek("api", "other").remaining == 3
