# SPDX-License-Identifier: MIT
"""A real Redis Cluster as the store: whatever moves, every query has its answer and every count is exact."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from certificates import Authority
from daemon import ASK_ALWAYS, Agent, Rack
from ports import free_port
from processes import wait_until
from redis_cluster import RedisCluster, is_well, role, running_cluster
from redis_server import RedisServer
from rpc import Decision

LIMITS = """
[limits.api]
rate = "50/h"
on_failure = "deny"
deadline = "5s"
refund = true

[limits.few]
rate = "3/h"
on_failure = "deny"
deadline = "5s"

[limits.tiered]
tiers = [ { name = "hour", rate = "3/h", algorithm = "fixed_window" } ]
on_failure = "deny"
deadline = "5s"

[limits.counted]
rate = "3/h"
algorithm = "counter"
on_failure = "deny"
deadline = "5s"

[limits.parted]
rate = "9/h"
split = 3
refund = true
on_failure = "deny"
deadline = "5s"

[limits.hasty]
rate = "5/h"
on_failure = "deny"
deadline = "50ms"
"""


@pytest.fixture(scope="module")
def running() -> Iterator[RedisCluster]:
    # What one master keeps is then no concern of the others while it is dead.
    with running_cluster(3, 3, "--cluster-require-full-coverage", "no") as cluster:
        yield cluster


@pytest.fixture
def cluster(running: RedisCluster) -> Iterator[RedisCluster]:
    """Three masters and their replicas, empty; and a check at the end that all of what is in them goes by itself."""
    running.wait_until_whole()
    for server in set(running.owners().values()):
        server.call("FLUSHALL")
    yield running
    for server in set(running.owners().values()):
        for key in server.keys():
            assert server.call("PTTL", key) > 0, key


@pytest.fixture
def single() -> Iterator[RedisCluster]:
    """A Cluster of one node."""
    with running_cluster(1) as cluster:
        yield cluster


def start(rack: Rack, redis: str, limits: str = LIMITS) -> Agent:
    agent = rack.start(limits, redis=redis)
    agent.wait_for_redis()
    return agent


def address(server: RedisServer) -> str:
    return f"127.0.0.1:{server.port}"


def user_key(key: bytes) -> str:
    return key.rsplit(b":", 1)[1].decode()


def test_keys_are_spread_over_all_masters_and_counted_exactly(rack: Rack, cluster: RedisCluster) -> None:
    keys = [f"k{number}" for number in range(90)]
    agents = [start(rack, cluster.config()), start(rack, cluster.config())]
    passed: Counter[str] = Counter()
    for _ in range(3):
        for agent in agents:
            with agent.connect() as client:
                for key in keys:
                    passed[key] += client.allow("few", key).allowed
    assert passed == dict.fromkeys(keys, 3)
    spread = Counter(cluster.keys().values())
    assert set(spread) == set(cluster.masters)
    assert all(15 <= count <= 45 for count in spread.values()), spread
    for agent in agents:
        shown = agent.shards()
        assert set(shown) == {address(server) for server in cluster.masters}
        assert sorted(int(line["groups"]) for line in shown.values()) == [21, 21, 22]
        assert all(line["state"] == "up" for line in shown.values())
        wait_until(lambda agent=agent: agent.metric("agents_known") == 2, "the agents know each other")
        assert agent.metric("redis_shards") == agent.metric("redis_up") == 3
        assert agent.metric("redis_redirections_total") == 0


def test_every_kind_of_limit_and_the_parts_of_one(rack: Rack, cluster: RedisCluster) -> None:
    agent = start(rack, cluster.config())
    with agent.connect() as client:
        for limit in ("few", "tiered", "counted"):
            answers = [client.allow(limit, "k") for _ in range(5)]
            assert [answer.allowed for answer in answers] == [True] * 3 + [False] * 2, limit
            assert answers[2].remaining == 0 and answers[0].source == "store", limit
        assert [client.allow("parted", "hot").allowed for _ in range(12)] == [True] * 9 + [False] * 3
    parts = {key: server for key, server in cluster.keys().items() if key.endswith(b"hot")}
    assert len(parts) == 3 and len({key[:12] for key in parts}) == 3, "each part is of another group"


def test_one_answer_is_enough_to_find_the_cluster(
    rack: Rack, cluster: RedisCluster, redis: RedisServer
) -> None:
    nobody = f"redis://127.0.0.1:{free_port()}"
    seeds = ", ".join(f'"{url}"' for url in (nobody, redis.url, cluster.replicas[0].url))
    agent = start(rack, f"cluster = [ {seeds} ]")
    assert agent.allow("few", "k").source == "store"
    assert set(agent.shards()) == {address(server) for server in cluster.masters}
    lost = rack.start(LIMITS, redis=f'cluster = [ "{nobody}", "{redis.url}" ]')
    decision = lost.allow("few", "k")
    assert (decision.verdict, decision.source) == ("unavailable", "fallback")
    assert 0 < decision.retry_after_us <= 2_000_000
    wait_until(lambda: "nobody says which node keeps what" in lost.log(), "the fault is logged")
    assert "cluster support disabled" in lost.log()
    ((name, line),) = lost.shards().items()
    assert (name, line["groups"], line["state"], line["agents"]) == ("-", "0", "down", "unknown")
    assert line["url"] == f"{nobody},{redis.url}"
    assert "cluster support disabled" in line["reason"] and int(line["reason_age_us"]) < 60_000_000
    assert lost.metric("redis_up") == lost.metric("redis_shards") == 0


def test_a_single_node_of_a_cluster_says_what_to_configure(rack: Rack, cluster: RedisCluster) -> None:
    agent = rack.start(LIMITS, redis=f'url = "{cluster.masters[0].url}"')
    agent.wait_for_redis()
    with agent.connect() as client:
        sources = Counter(client.allow("few", f"k{number}").source for number in range(60))
        client.ask("allow_many", [["few", f"m{number}", 1] for number in range(20)])
    assert 5 <= sources["store"] <= 40 and sources["fallback"] == 60 - sources["store"], "it keeps a third"
    assert agent.log().count("this is a Cluster: set [redis] cluster = [") == 1
    assert "on_failure decides meanwhile" not in agent.log()
    assert agent.metric("redis_errors_total") >= sources["fallback"]


# Slots that move


def keys_of_one_group(agent: Agent, cluster: RedisCluster, limit: str = "few") -> tuple[bytes, bytes]:
    """Redis's names of two keys with the same hash tag, each charged once."""
    seen: dict[bytes, bytes] = {}
    with agent.connect() as client:
        for number in range(300):
            assert client.allow(limit, f"p{number}").allowed
    for key in cluster.keys():
        tag = key.split(b"}")[0]
        if tag in seen:
            return seen[tag], key
        seen[tag] = key
    raise AssertionError("of 300 keys two share a group")


def other_than(server: RedisServer, cluster: RedisCluster) -> RedisServer:
    return next(other for other in cluster.masters if other is not server)


def test_a_moved_slot_is_followed_at_once(rack: Rack, cluster: RedisCluster) -> None:
    agent = start(rack, cluster.config())
    assert agent.allow("few", "k").remaining == 2
    (key,) = cluster.keys()
    source = cluster.owner(key)
    target = other_than(source, cluster)
    cluster.move(cluster.slot(key), source, target)
    try:
        for remaining in (1, 0):
            decision = agent.allow("few", "k")
            assert (decision.remaining, decision.source) == (remaining, "store")
        assert agent.metric("redis_redirections_total") == 1, "it has learned where to go"
        groups = {name: int(line["groups"]) for name, line in agent.shards().items()}
        assert groups[address(target)] >= 22 and sum(groups.values()) == 64
        wait_until(lambda: agent.metric("redis_cluster_map_refreshes_total") >= 2, "the map is asked for")
        assert not agent.allow("few", "k").allowed
    finally:
        cluster.move(cluster.slot(key), target, source)


def test_a_reset_finds_its_key_wherever_it_is(rack: Rack, cluster: RedisCluster) -> None:
    agent = start(rack, cluster.config())
    agent.allow("few", "k", 3)
    (key,) = cluster.keys()
    source = cluster.owner(key)
    target = other_than(source, cluster)
    slot = cluster.slot(key)
    cluster.begin_move(slot, source, target)
    try:
        cluster.move_keys([key], source, target)
        agent.admin("reset few k")
        assert not cluster.keys(), "where its slot is going"
        assert agent.allow("few", "k", 3).allowed
        cluster.end_move(slot, source, target)
        agent.admin("reset few k")
        assert not cluster.keys(), "where its slot has gone"
    finally:
        cluster.move(slot, target, source)


def test_a_key_that_has_left_before_its_slot_is_asked_where_it_went(rack: Rack, cluster: RedisCluster) -> None:
    agent = start(rack, cluster.config())
    first, second = keys_of_one_group(agent, cluster)
    source = cluster.owner(first)
    target = other_than(source, cluster)
    slot = cluster.slot(first)
    cluster.begin_move(slot, source, target)
    try:
        cluster.move_keys([first], source, target)
        before = agent.metric("redis_redirections_total")
        decision = agent.allow("few", user_key(first))
        assert (decision.remaining, decision.source) == (1, "store")
        assert agent.metric("redis_redirections_total") == before + 1
        assert agent.allow("few", user_key(first)).remaining == 0
        assert agent.metric("redis_redirections_total") == before + 2, "the map has not changed"
        # One is here, one there: the script that asks about both is taken apart.
        both = [["few", user_key(key), 1] for key in (second, first)]
        answers = [Decision(*one) for one in agent.ask("allow_many", both)]
        assert [(answer.allowed, answer.remaining, answer.source) for answer in answers] == [
            (True, 1, "store"),
            (False, 0, "store"),
        ]
        assert agent.metric("redis_redirections_total") == before + 2 + 2 + 1
        answers = [Decision(*one) for one in agent.ask("allow_many", both, "all")]
        assert [answer.source for answer in answers] == ["fallback"] * 2
        assert source.bucket(second).permits_used == 2, "nothing was charged"
        cluster.end_move(slot, source, target)
        assert agent.allow("few", user_key(second)).remaining == 0
    finally:
        cluster.end_move(slot, source, target)
        cluster.move(slot, target, source)


def test_slots_that_move_under_load_lose_no_query_and_count_exactly(rack: Rack, cluster: RedisCluster) -> None:
    capacity, keys = 50, [f"k{number}" for number in range(30)]
    agents = [start(rack, cluster.config() + ASK_ALWAYS), start(rack, cluster.config())]
    passed: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    lock = threading.Lock()

    def ask(agent: Agent, offset: int) -> None:
        with agent.connect() as client:
            for turn in range(capacity + 10):
                asked = {client.post("allow", "api", key): key for key in keys[turn % 7 + offset :] + keys[: turn % 7 + offset]}
                replies = client.receive_many(len(asked))
                with lock:
                    for msgid, key in asked.items():
                        decision = Decision(*replies[msgid].result)
                        passed[key] += decision.allowed
                        sources[decision.source] += 1
                time.sleep(0.01)  # so that many slots move meanwhile

    threads = [threading.Thread(target=ask, args=(agent, 7 * offset)) for offset, agent in enumerate(agents)]
    for key in keys:
        assert agents[0].allow("api", key).allowed
    for thread in threads:
        thread.start()
    moves = 0
    homes = {cluster.slot(key): server for key, server in cluster.keys().items()}
    places = dict(homes)
    for slot in itertools.cycle(homes):
        if not any(thread.is_alive() for thread in threads):
            break
        source, target = places[slot], other_than(places[slot], cluster)
        cluster.begin_move(slot, source, target)
        time.sleep(0.01)
        cluster.end_move(slot, source, target)
        places[slot] = target
        moves += 1
    for thread in threads:
        thread.join()
    for slot, home in homes.items():
        if places[slot] is not home:
            cluster.move(slot, places[slot], home)
    print(f"{moves} moves, {sources}, redirected {[a.metric('redis_redirections_total') for a in agents]}")
    assert sources["fallback"] == 0
    assert passed == dict.fromkeys(keys, capacity - 1)
    assert moves >= 4 and sum(agent.metric("redis_redirections_total") for agent in agents) >= 4


# Nodes that come and go


def test_a_new_node_is_used_and_left_again(rack: Rack, cluster: RedisCluster) -> None:
    agent = start(rack, cluster.config())
    assert agent.allow("few", "k").remaining == 2
    (key,) = cluster.keys()
    slot, source = cluster.slot(key), cluster.owner(key)
    added = cluster.add_master()
    try:
        cluster.move(slot, source, added)
        assert agent.allow("few", "k")[:3:2] == (True, 1), "it is waited for while it connects"
        assert agent.allow("few", "k").source == "store"
        assert agent.shards()[address(added)]["groups"] == "1"
        assert agent.metric("redis_shards") == 4
        cluster.move(slot, added, source)
        assert agent.peek("few", "k")[2:7:4] == (0, "store")
        assert agent.metric("redis_shards") == 3
    finally:
        cluster.remove_master(added)
    wait_until(lambda: address(added) not in agent.shards(), "what keeps nothing is left", 20)
    assert agent.metric("redis_questions_total") >= 4, "what it counted stays counted"
    assert agent.allow("few", "other").source == "store"


def test_a_grant_that_comes_late_is_given_back(rack: Rack, cluster: RedisCluster) -> None:
    agent = start(rack, cluster.config())
    assert agent.allow("hasty", "k").remaining == 4
    (key,) = cluster.keys()
    keeper = cluster.owner(key)
    keeper.pause()
    try:
        assert agent.allow("hasty", "k").verdict == "unavailable"
    finally:
        keeper.resume()
    wait_until(lambda: agent.metric("redis_given_back_total") == 1, "the late grant is given back")
    wait_until(lambda: agent.peek("hasty", "k").remaining == 4, "as if it had not been")


def test_a_cluster_that_is_down_is_answered_for_and_used_again(rack: Rack, single: RedisCluster) -> None:
    agent = start(rack, single.config())
    assert agent.allow("few", "k").source == "store"
    (node,) = single.masters
    (key,) = node.keys()
    other_slot = (single.slot(key) + 1) % 16_384
    node.call("CLUSTER", "DELSLOTS", other_slot)
    wait_until(lambda: b"cluster_state:fail" in node.call("CLUSTER", "INFO"), "not all slots are served")
    decision = agent.allow("few", "k")
    assert (decision.verdict, decision.source) == ("unavailable", "fallback")
    assert "CLUSTERDOWN" in agent.log()
    node.call("CLUSTER", "ADDSLOTS", other_slot)
    wait_until(lambda: is_well(node), "all slots are served")
    assert agent.allow("few", "k")[:3:2] == (True, 1), "and nothing was charged meanwhile"


def test_a_dead_master_is_replaced_by_its_replica(rack: Rack, cluster: RedisCluster) -> None:
    agents = [start(rack, cluster.config()), start(rack, cluster.config())]
    keys = [f"k{number}" for number in range(60)]
    for key in keys:
        assert agents[0].allow("few", key, 2).remaining == 1
    dead = cluster.masters[0]
    lost = [user_key(key) for key in dead.keys()]
    replica = cluster.replica_of(dead)
    wait_until(lambda: lost and set(dead.keys()) <= set(replica.keys()), "its replica has it all")
    answers: list[tuple[float, Decision]] = []
    is_over = threading.Event()

    def ask() -> None:
        with agents[1].connect() as client:
            while not is_over.is_set():
                began = time.monotonic()
                decision = client.peek("hasty", "other")
                assert time.monotonic() - began < 1, "an answer in time, whatever happens"
                answers.append((time.monotonic(), client.peek("few", lost[0])))
                assert decision.allowed or decision.source == "fallback"
                time.sleep(0.005)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        dead.kill()
        with agents[0].connect() as client:
            for key in set(keys) - set(lost):
                assert client.peek("few", key)[2:7:4] == (1, "store"), "others' keys are not concerned"
        wait_until(lambda: role(replica) == "master" and is_well(replica), "the replica takes over", 30)
        new_master_at = time.monotonic()
        wait_until(lambda: agents[1].peek("few", lost[0]).source == "store", "the store answers again", 10)
        again_at = time.monotonic()
    finally:
        is_over.set()
        asker.join()
        dead.start()
    answered_at = (at for at, decision in answers if at > new_master_at and decision.source == "store")
    took = next(answered_at, again_at) - new_master_at
    print(f"answered again {took:.3f} s after the new master was up")
    assert took < 2
    for agent in agents:
        wait_until(lambda agent=agent: not agent.ask("info")["degraded"], "every agent has found it")
    passed: Counter[str] = Counter()
    for agent in agents:
        with agent.connect() as client:
            for key in keys:
                passed[key] += client.allow("few", key).allowed
    assert passed == dict.fromkeys(keys, 1), "nothing was lost, and nothing passes twice"
    cluster.wait_until_whole()
    cluster.swap(dead, replica)


def test_what_a_hung_master_grants_after_it_was_replaced_is_not_given_back(rack: Rack, cluster: RedisCluster) -> None:
    agent = start(rack, cluster.config())
    assert agent.allow("hasty", "k", 2).remaining == 3
    (key,) = cluster.keys()
    hung = cluster.owner(key)
    replica = cluster.replica_of(hung)
    wait_until(lambda: key in replica.keys(), "its replica has it")
    hung.pause()
    try:
        assert agent.allow("hasty", "k").verdict == "unavailable", "it is asked, and answers when it is woken"
        wait_until(lambda: role(replica) == "master", "the replica takes over", 30)
        wait_until(lambda: agent.peek("hasty", "k").source == "store", "the new master is asked", 10)
    finally:
        hung.resume()
    wait_until(lambda: agent.metric("late_answers_total") == 1, "it answers all the same")
    wait_until(lambda: role(hung) == "slave", "the old master has heard of it", 30)
    cluster.swap(hung, replica)
    cluster.wait_until_whole()
    assert agent.peek("hasty", "k").remaining == 3, "the new master is given nothing back"


def test_a_user_with_few_rights_is_enough(rack: Rack, cluster: RedisCluster) -> None:
    rights = (
        "+evalsha +script|load +time +auth +mget +set +setex +setrange +pttl +expire +cluster|slots +asking"
        " +zadd +zremrangebyscore +zcount +zrem"
    )
    for server in cluster.servers:
        server.call("ACL", "SETUSER", "limiter", "on", ">pa55", "resetchannels", "-@all", "~allowd:*", *rights.split())
    seeds = ", ".join(f'"redis://limiter:pa55@{address(server)}"' for server in cluster.masters)
    agent = start(rack, f"cluster = [ {seeds} ]")
    assert agent.allow("few", "k").remaining == 2
    (key,) = cluster.keys()
    slot, source = cluster.slot(key), cluster.owner(key)
    target = other_than(source, cluster)
    cluster.begin_move(slot, source, target)
    try:
        cluster.move_keys([key], source, target)
        assert agent.allow("few", "k")[:3:2] == (True, 1)
    finally:
        cluster.end_move(slot, source, target)
        cluster.move(slot, target, source)
    assert agent.metric("redis_errors_total") == 0
    assert agent.metric("agents_known") == 1


def test_nodes_are_reached_over_tls(rack: Rack, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue()
    port = free_port()
    files = ["--tls-cert-file", certificate.cert, "--tls-key-file", certificate.key, "--tls-ca-cert-file", authority.cert]
    wishes = ["--tls-port", str(port), "--tls-cluster", "yes", "--tls-auth-clients", "no"]
    cluster = RedisCluster(tmp_path, 1, 0, *wishes, *map(str, files))
    try:
        cluster.start()
        believed = f'\n[redis.tls]\nca_file = "{authority.cert}"'
        agent = start(rack, f'cluster = [ "rediss://127.0.0.1:{port}" ]{believed}')
        assert agent.allow("few", "k").source == "store"
        assert list(agent.shards()) == [f"127.0.0.1:{port}"], "a node names its TLS port to who asks over TLS"
        other = f'\n[redis.tls]\nca_file = "{Authority(tmp_path, "other").cert}"'
        stranger = rack.start(LIMITS, redis=f'cluster = [ "rediss://127.0.0.1:{port}" ]{other}')
        wait_until(lambda: "nobody says which node keeps what" in stranger.log(), "it is not believed")
        assert "certificate verify failed" in stranger.log()
    finally:
        cluster.close()
