# SPDX-License-Identifier: MIT
"""What a Redis Cluster does at its worst moments, and what the agent makes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from certificates import Authority
from daemon import Agent, Rack
from fake_redis import FakeRedis, Peer, honest_answer
from ports import free_port
from processes import wait_until
from redis_cluster import RedisCluster, is_well, running_cluster
from relay import Relay
from slow_files import SlowFile

METRICS = ("redis_cluster_map_refreshes_total", "redis_cluster_keeper_questions_total")
LIMITS = """
[limits.few]
rate = "3/h"
on_failure = "deny"
deadline = "5s"
"""


@pytest.fixture
def single() -> Iterator[RedisCluster]:
    """A Cluster of one node."""
    with running_cluster(1) as cluster:
        yield cluster


@pytest.fixture
def cluster() -> Iterator[RedisCluster]:
    """Three masters, the first of which has a replica."""
    # What one master keeps is then no concern of the others while it is dead.
    with running_cluster(3, 1, "--cluster-require-full-coverage", "no") as cluster:
        yield cluster


def start(rack: Rack, redis: str, limits: str = LIMITS) -> Agent:
    agent = rack.start(limits, redis=redis)
    agent.wait_for_redis()
    return agent


# Resets


def test_a_reset_waits_for_a_cluster_that_is_down_for_a_moment(rack: Rack, single: RedisCluster) -> None:
    agent = start(rack, single.config())
    assert agent.allow("few", "k", 3).allowed
    (node,) = single.masters
    (key,) = node.keys()
    other_slot = (single.slot(key) + 1) % 16_384
    node.call("CLUSTER", "DELSLOTS", other_slot)
    wait_until(lambda: b"cluster_state:fail" in node.call("CLUSTER", "INFO"), "not all slots are served")
    heal = threading.Timer(0.3, lambda: node.call("CLUSTER", "ADDSLOTS", other_slot))
    heal.start()
    try:
        assert agent.admin("reset few k") == "reset\n"
    finally:
        heal.join()
    wait_until(lambda: is_well(node), "all slots are served")
    assert not node.keys()


def test_a_reset_of_a_cluster_that_stays_down_fails_within_a_second(rack: Rack, single: RedisCluster) -> None:
    agent = start(rack, single.config())
    assert agent.allow("few", "k", 3).allowed
    (node,) = single.masters
    (key,) = node.keys()
    node.call("CLUSTER", "DELSLOTS", (single.slot(key) + 1) % 16_384)
    wait_until(lambda: b"cluster_state:fail" in node.call("CLUSTER", "INFO"), "not all slots are served")
    began = time.monotonic()
    assert agent.admin("reset few k").startswith("error: unavailable")
    assert 0.5 < time.monotonic() - began < 2


def test_a_reset_is_repeated_when_it_should_be_tried_again(rack: Rack) -> None:
    deletions: list[bytes] = []

    def behave(peer: Peer) -> None:
        while True:
            command = peer.read_command()
            if command[0] == b"CLUSTER":
                address = b"*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % fake.port
                peer.send(b"*1\r\n*3\r\n:0\r\n:16383\r\n" + address)
            elif command[0] == b"DEL":
                deletions.append(command[1])
                peer.send(b"-TRYAGAIN Multiple keys request during rehashing of slot\r\n" if len(deletions) < 4 else b":1\r\n")
            else:
                peer.send(honest_answer(command))

    with FakeRedis(behave) as fake:
        agent = start(rack, f'cluster = [ "redis://127.0.0.1:{fake.port}" ]')
        assert agent.admin("reset few k") == "reset\n"
        mine = [key for key in deletions if key == deletions[0]]
        assert len(mine) >= 2, "the same key, until it is done"
        agent.stop()


# A master that is missed


def test_a_master_that_is_missed_for_long_is_asked_for_seldom_and_its_heir_found_soon(
    rack: Rack, cluster: RedisCluster
) -> None:
    agent = start(rack, cluster.config())
    dead, (heir,) = cluster.masters[0], cluster.replicas
    with agent.connect() as client:
        for number in range(30):
            assert client.allow("few", f"k{number}").source == "store"
    (lost, *_) = (key.rsplit(b":", 1)[1].decode() for key in dead.keys())
    wait_until(lambda: set(dead.keys()) <= set(heir.keys()), "the replica has it all")
    heir.call("CONFIG", "SET", "cluster-replica-no-failover", "yes")
    dead.kill()
    wait_until(lambda: agent.allow("few", lost).source == "fallback", "it is missed")
    maps, questions = (agent.metric(name) for name in METRICS)
    missed_for = 10
    began = time.monotonic()
    while time.monotonic() - began < missed_for:
        assert agent.allow("few", lost).source == "fallback"
        time.sleep(0.01)
    more_maps, more_questions = agent.metric(METRICS[0]) - maps, agent.metric(METRICS[1]) - questions
    print(f"in {missed_for} s the map was asked for {more_maps:g} times, its keeper {more_questions:g} times")
    assert 2 <= more_maps <= 5, "after a second, two, four, four"
    assert 7 <= more_questions <= 15, "about once a second"
    heir.call("CLUSTER", "FAILOVER", "TAKEOVER")
    began = time.monotonic()
    wait_until(lambda: agent.peek("few", lost).source == "store", "the heir is asked")
    took = time.monotonic() - began
    print(f"answered again {took:.3f} s after the new master was up")
    assert took < 2
    assert agent.peek("few", lost).remaining == 2
    shard = agent.shards()[f"127.0.0.1:{heir.port}"]
    assert int(shard["groups"]) >= 21, "all that it has inherited"


# TLS that takes its time


class Secured:
    """A Cluster of one node that is reached over TLS."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        certificate = self.authority.issue()
        self.port = free_port()
        files = ["--tls-cert-file", certificate.cert, "--tls-key-file", certificate.key]
        wishes = ["--tls-port", self.port, "--tls-cluster", "yes", "--tls-auth-clients", "no"]
        authority = ["--tls-ca-cert-file", self.authority.cert]
        self.cluster = RedisCluster(directory, 1, 0, *map(str, [*wishes, *files, *authority]))
        self.cluster.start()

    def config(self, port: int | None = None) -> str:
        seed = f"rediss://127.0.0.1:{port or self.port}"
        return f'cluster = [ "{seed}" ]\nreconnect_max = "250ms"\n[redis.tls]\nca_file = "{self.authority.cert}"'


@pytest.fixture
def secured() -> Iterator[Secured]:
    with TemporaryDirectory(prefix="allowd-e2e-") as directory:
        made = Secured(Path(directory))
        try:
            yield made
        finally:
            made.cluster.close()


def test_certificates_that_take_long_to_read_cost_the_server_no_patience(
    rack: Rack, secured: Secured, tmp_path: Path
) -> None:
    # Looked at and read: 0.7 s, which is more than a node has to name its slots.
    slow = SlowFile(tmp_path, secured.authority.cert, 350)
    agent = rack.start(LIMITS, redis=secured.config(), environment=slow.environment)
    agent.wait_for_redis()
    assert agent.allow("few", "k").source == "store"
    assert agent.metric("redis_cluster_map_failures_total") == 0
    (node,) = secured.cluster.masters
    for _ in range(2):
        connects = agent.metric("redis_connects_total")
        opened = slow.opened
        node.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        wait_until(lambda: agent.metric("redis_connects_total") > connects, "it has connected anew")
        time.sleep(2)  # so that the file is old enough to be believed unchanged
    assert slow.opened == opened, "what has not changed is not read again"


def test_a_slow_handshake_is_waited_for(rack: Rack, secured: Secured) -> None:
    with Relay(secured.port) as relay:
        relay.first_delay = 0.7
        agent = start(rack, secured.config(relay.port))
        assert agent.allow("few", "k").source == "store"
        assert agent.metric("redis_cluster_map_failures_total") == 0
