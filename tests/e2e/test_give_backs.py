# SPDX-License-Identifier: MIT
"""What was granted too late is given back to the server that granted it, and to no other."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from daemon import Agent, Rack
from fake_redis import FakeRedis, FakeSentinel, Peer, honest_answer, integers
from processes import wait_until
from redis_server import RedisServer

LIMITS = """
[limits.hasty]
rate = "5/h"
on_failure = "deny"
deadline = "50ms"
"""

MakeRedis = Callable[..., RedisServer]


def start(rack: Rack, redis: str) -> Agent:
    agent = rack.start(LIMITS, redis=redis)
    agent.wait_for_redis()
    return agent


def bulk(*lines: str) -> bytes:
    text = "".join(f"{line}\r\n" for line in lines).encode()
    return b"$%d\r\n%s\r\n" % (len(text), text)


def operation(script: list[bytes]) -> bytes:
    """Of a script about one key."""
    key_count, limit_count = int(script[2]), int(script[6 + int(script[2])])
    assert (key_count, limit_count) == (1, 1)
    return script[13]


# A master that was replaced, as a Sentinel tells


def test_a_master_that_took_anothers_place_is_given_nothing_back(rack: Rack, make_redis: MakeRedis) -> None:
    former, latter = make_redis(), make_redis()
    former.start()
    latter.start()
    with FakeSentinel(former.port) as sentinel:
        agent = start(rack, sentinel.config)
        assert agent.allow("hasty", "k", 2).remaining == 3
        key = former.only_key()
        latter.call("RESTORE", key, former.call("PTTL", key), former.call("DUMP", key))
        former.pause()
        try:
            assert agent.allow("hasty", "k").verdict == "unavailable", "it is asked, and answers when it is woken"
            sentinel.named = latter.port
            wait_until(lambda: agent.peek("hasty", "k").source == "store", "the other one is asked")
        finally:
            former.resume()
        wait_until(lambda: agent.metric("late_answers_total") >= 1, "the former master grants it all the same")
        wait_until(lambda: former.bucket(key).permits_used == 3, "and charges it")
        assert agent.metric("redis_give_backs_dropped_total") == 1
        assert agent.metric("redis_given_back_total") == 0
        assert latter.bucket(key).permits_used == 2
        agent.stop()


# A node of a Cluster


class Node:
    """Keeps all slots, grants everything late, and has moved when something is to be given back."""

    def __init__(self, moved_to: Node | None = None) -> None:
        self.given_back = 0
        self.is_master = True
        self.replication_id = "r1"
        self.info_is_allowed = True
        self._moved_to = moved_to
        self.fake = FakeRedis(self._serve)

    def _serve(self, peer: Peer) -> None:
        while True:
            command = peer.read_command()
            if command[0] == b"CLUSTER":
                address = b"*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % self.fake.port
                peer.send(b"*1\r\n*3\r\n:0\r\n:16383\r\n" + address)
            elif command[0] == b"INFO":
                peer.send(self._info() if self.info_is_allowed else b"-NOPERM no INFO for you\r\n")
            elif command[0] == b"EVALSHA" and operation(command) == b"t":
                time.sleep(0.2)
                peer.send(integers(0, 0))
            elif command[0] == b"EVALSHA" and self._moved_to:
                peer.send(b"-MOVED 1 127.0.0.1:%d\r\n" % self._moved_to.fake.port)
            elif command[0] == b"EVALSHA":
                self.given_back += 1
                peer.send(integers(0, 0))
            else:
                peer.send(honest_answer(command))

    def _info(self) -> bytes:
        role = "master" if self.is_master else "slave"
        return bulk("redis_version:7.0.15", "run_id:p1", f"role:{role}", f"master_replid:{self.replication_id}")


def demote(node: Node) -> None:
    node.is_master = False


def demote_and_promote(node: Node) -> None:
    node.replication_id = "r2"


def forbid_info(node: Node) -> None:
    node.info_is_allowed = False


@pytest.mark.parametrize(
    ("happens", "is_given_back"),
    [(None, True), (demote, False), (demote_and_promote, False), (forbid_info, False)],
)
def test_a_key_that_moved_is_followed_while_its_node_is_a_master(
    rack: Rack, happens: Callable[[Node], None] | None, is_given_back: bool
) -> None:
    latter = Node()
    former = Node(moved_to=latter)
    try:
        agent = start(rack, f'cluster = [ "redis://127.0.0.1:{former.fake.port}" ]\nreconnect_max = "250ms"')
        assert agent.allow("hasty", "k").verdict == "unavailable", "it takes too long"
        if happens:
            happens(former)
        wait_until(
            lambda: latter.given_back + agent.metric("redis_give_backs_dropped_total") == 1,
            "the late grant is given back, or is not",
        )
        assert latter.given_back == is_given_back
        assert agent.metric("redis_given_back_total") == 1, "it was tried once"
        agent.stop()
    finally:
        former.fake.close()
        latter.fake.close()
