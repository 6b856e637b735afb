# SPDX-License-Identifier: MIT
"""What a Redis Cluster does at its worst moments, and what the agent makes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from daemon import Agent, Rack
from fake_redis import FakeRedis, Peer, honest_answer
from processes import wait_until
from redis_cluster import RedisCluster, is_well

LIMITS = """
[limits.few]
rate = "3/h"
on_failure = "deny"
deadline = "5s"
"""


@pytest.fixture
def single() -> Iterator[RedisCluster]:
    """A Cluster of one node."""
    with TemporaryDirectory(prefix="allowd-e2e-") as directory:
        cluster = RedisCluster(Path(directory), 1)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()


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
