# SPDX-License-Identifier: MIT
"""What only the nodes of older Clusters say, said by two that are not real."""

from __future__ import annotations

import threading
from collections import defaultdict

from daemon import Rack
from fake_redis import FakeRedis, Peer, honest_answer, integers, questions_in
from rpc import Decision

LIMITS = """
[limits.few]
rate = "3/h"
on_failure = "deny"
deadline = "5s"
"""


class PartedSlots:
    """A node that keeps all slots but hands them over, and the one that takes them: what has left is there."""

    def __init__(self) -> None:
        self.has_left: set[bytes] = set()
        self.asked_here: list[list[bytes]] = []
        self.asked_there: list[list[bytes]] = []
        self.are_all_asking = True
        self._lock = threading.Lock()
        self.there = FakeRedis(self._serve_there)
        self.here = FakeRedis(self._serve_here)

    def close(self) -> None:
        self.here.close()
        self.there.close()

    def _serve_here(self, peer: Peer) -> None:
        while True:
            command = peer.read_command()
            if command[0] == b"CLUSTER":
                peer.send(b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n")
                peer.send(b"$9\r\n127.0.0.1\r\n:%d\r\n$40\r\n%s\r\n" % (self.here.port, b"n" * 40))
            elif command[0] == b"EVALSHA":
                keys = command[3 : 3 + questions_in(command)]
                with self._lock:
                    self.asked_here.append(keys)
                # As before Redis 7: whether or not others of them are here.
                gone = self.has_left.intersection(keys)
                peer.send(b"-ASK 1 127.0.0.1:%d\r\n" % self.there.port if gone else integers(*[0] * len(keys), 0))
            else:
                peer.send(honest_answer(command))

    def _serve_there(self, peer: Peer) -> None:
        is_asking = False
        while True:
            command = peer.read_command()
            if command[0] == b"EVALSHA":
                keys = command[3 : 3 + questions_in(command)]
                with self._lock:
                    self.asked_there.append(keys)
                    self.are_all_asking &= is_asking
                peer.send(integers(*[0] * len(keys), 0))
            else:
                peer.send(honest_answer(command))
            is_asking = command[0] == b"ASKING"


def test_of_a_script_whose_keys_are_parted_each_is_asked_where_it_is(rack: Rack) -> None:
    nodes = PartedSlots()
    try:
        agent = rack.start(LIMITS, redis=f'cluster = [ "redis://127.0.0.1:{nodes.here.port}" ]')
        agent.wait_for_redis()
        names = [f"k{number}" for number in range(80)]
        agent.ask("allow_many", [["few", name, 1] for name in names])
        groups: dict[bytes, list[bytes]] = defaultdict(list)
        for key in (key for keys in nodes.asked_here for key in keys):
            groups[key[: key.index(b"}")]].append(key)
        stays, leaves = next(keys for keys in groups.values() if len(keys) > 1)[:2]
        nodes.asked_here.clear()
        nodes.has_left.add(leaves)
        items = [["few", key.rsplit(b":", 1)[1], 1] for key in (stays, leaves)]
        answers = [Decision(*answer) for answer in agent.ask("allow_many", items)]
        assert [answer.source for answer in answers] == ["store", "store"]
        assert nodes.asked_here[0] == [stays, leaves], "one script at first"
        assert sorted(nodes.asked_here[1:]) == sorted([[stays], [leaves]])
        assert nodes.asked_there == [[leaves]], "what is still here is not counted there"
        assert nodes.are_all_asking
        agent.stop()
    finally:
        nodes.close()
