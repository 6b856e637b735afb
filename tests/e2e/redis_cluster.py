# SPDX-License-Identifier: MIT
"""A real Redis Cluster of masters and replicas on free ports, whose slots can be moved by hand.

Ownership  A RedisCluster owns its servers. close() ends exactly their processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ports import free_port
from processes import wait_until
from redis_server import RedisServer, needs, version
from resp import RedisError

SLOTS = 16_384
_BUS_BESIDE = 10_000  # before Redis 7 the other nodes' port is so much above the clients'
NODE_TIMEOUT_MS = 1000


class RedisCluster:
    """Not running until start()."""

    def __init__(self, directory: Path, masters: int, replicas: int = 0, *options: str) -> None:
        self._directory = directory
        self._options = options
        self.masters = [self._make(f"m{number}") for number in range(masters)]
        self.replicas = [self._make(f"r{number}") for number in range(replicas)]

    def _make(self, name: str) -> RedisServer:
        is_old = version() < (7,)
        if "--tls-cluster" in self._options:
            needs(7)  # before, the bus stands beside the port for TLS
        newer = () if is_old else ("--cluster-port", str(free_port()), "--cluster-allow-replica-migration", "no")
        return RedisServer(
            self._directory / name,
            *("--cluster-enabled", "yes"),
            *("--cluster-node-timeout", str(NODE_TIMEOUT_MS)),
            *("--cluster-replica-validity-factor", "0"),
            *("--repl-diskless-sync-delay", "0"),
            *newer,
            *self._options,
            port=free_port(_BUS_BESIDE) if is_old else 0,
        )

    @property
    def servers(self) -> list[RedisServer]:
        return [*self.masters, *self.replicas]

    # Its life

    def start(self) -> None:
        for server in self.servers:
            server.start()
        count = len(self.masters)
        for number, server in enumerate(self.masters):
            first, end = SLOTS * number // count, SLOTS * (number + 1) // count
            server.call("CLUSTER", "ADDSLOTS", *range(first, end))
            server.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for server in self.servers[1:]:
            self._introduce(server)
        wait_until(self._all_know_each_other, "the nodes know each other", 60)
        for number, server in enumerate(self.replicas):
            server.call("CLUSTER", "REPLICATE", node_id(self.masters[number % count]))
        self.wait_until_whole(60)

    def add_master(self) -> RedisServer:
        """One more, without slots."""
        server = self._make(f"m{len(self.masters)}")
        server.start()
        self.masters.append(server)
        self._introduce(server)
        wait_until(self._all_know_each_other, "the new node is known", 60)
        self.wait_until_whole()
        return server

    def remove_master(self, server: RedisServer) -> None:
        """One that keeps no slots any more."""
        self.masters.remove(server)
        forgotten = node_id(server)
        server.close()
        for other in self.servers:
            other.call("CLUSTER", "FORGET", forgotten)

    def swap(self, master: RedisServer, replica: RedisServer) -> None:
        """They have changed places: `master` follows `replica`."""
        self.masters[self.masters.index(master)] = replica
        self.replicas[self.replicas.index(replica)] = master

    def wait_until_whole(self, within: float = 30) -> None:
        """Until every node says that all slots are served, and every replica follows its master."""
        wait_until(lambda: all(is_well(server) for server in self.servers), "the Cluster is whole", within)

    def close(self) -> None:
        for server in self.servers:
            server.close()

    def _introduce(self, server: RedisServer) -> None:
        bus = cluster_port(self.masters[0])
        server.call("CLUSTER", "MEET", "127.0.0.1", self.masters[0].port, bus)

    def _all_know_each_other(self) -> bool:
        known = f"cluster_known_nodes:{len(self.servers)}\r\n".encode()
        return all(
            known in server.call("CLUSTER", "INFO") and b"handshake" not in server.call("CLUSTER", "NODES")
            for server in self.servers
        )

    # Its agents

    def config(self, *first: str, reconnect_max: str = "250ms") -> str:
        """The lines of an agent's [redis] table; what stands first is asked before the Cluster's own nodes."""
        urls = ", ".join(f'"{url}"' for url in [*first, *(server.url for server in self.masters)])
        return f'cluster = [ {urls} ]\nreconnect_max = "{reconnect_max}"'

    # Where things are

    def owners(self) -> dict[int, RedisServer]:
        """The master of each range's first slot, as the first server that answers tells it; see owner()."""
        by_port = {server.port: server for server in self.servers}
        for server in self.servers:
            if not server.is_running():
                continue
            ranges = server.call("CLUSTER", "SLOTS")
            return {slot: by_port[master[1]] for first, last, master, *_ in ranges for slot in range(first, last + 1)}
        raise AssertionError("no node is running")

    def owner(self, key: bytes) -> RedisServer:
        return self.owners()[self.slot(key)]

    def replica_of(self, master: RedisServer) -> RedisServer:
        """It may just have heard of its master."""
        found: list[RedisServer] = []

        def is_found() -> bool:
            found.extend(server for server in self.replicas if server.call("ROLE")[2] == master.port)
            return bool(found)

        wait_until(is_found, "somebody follows the master", 20)
        return found[0]

    def slot(self, key: bytes) -> int:
        running = next(server for server in self.servers if server.is_running())
        return int(running.call("CLUSTER", "KEYSLOT", key))

    def keys(self) -> dict[bytes, RedisServer]:
        """All keys of the masters, and who has each."""
        return {key: server for server in self.masters if server.is_running() for key in server.keys()}

    # Moving slots

    def begin_move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", node_id(source))
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", node_id(target))

    def move_keys(self, keys: Iterable[bytes], source: RedisServer, target: RedisServer) -> None:
        source.call("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)

    def end_move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
            self.move_keys(keys, source, target)
        new_owner = node_id(target)
        others = [server for server in self.masters if server not in (source, target) and server.is_running()]
        for server in [target, source, *others]:
            try:
                server.call("CLUSTER", "SETSLOT", slot, "NODE", new_owner)
            except RedisError as problem:
                # Before Redis 7, who has lost his last slot follows who took it.
                if version() >= (7,) or "only with masters" not in str(problem):
                    raise
        if version() < (7,):
            # These do not tell the others at once, who would claim their next slot for the same epoch.
            told = [server for server in self.masters if server.is_running()]
            wait_until(lambda: len({_epoch_of(new_owner, server) for server in told}) == 1, "the move is known")

    def move(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        self.begin_move(slot, source, target)
        self.end_move(slot, source, target)


def node_id(server: RedisServer) -> str:
    return str(server.call("CLUSTER", "MYID").decode())


def _epoch_of(node: str, server: RedisServer) -> str:
    """The configuration epoch that the server has heard of the node."""
    lines = server.call("CLUSTER", "NODES").decode().splitlines()
    return next(line.split()[6] for line in lines if line.startswith(node))


def cluster_port(server: RedisServer) -> int:
    if version() < (7,):
        return server.port + _BUS_BESIDE
    _, value = server.call("CONFIG", "GET", "cluster-port")
    return int(value)


def role(server: RedisServer) -> Any:
    return server.call("ROLE")[0].decode()


def is_well(server: RedisServer) -> bool:
    try:
        if b"cluster_state:ok" not in server.call("CLUSTER", "INFO"):
            return False
        _, *rest = server.call("ROLE")
        return role(server) == "master" or rest[2] == b"connected"
    except (OSError, RedisError):
        return False


@contextmanager
def running_cluster(masters: int, replicas: int = 0, *options: str) -> Iterator[RedisCluster]:
    """One that is whole, in a directory of its own."""
    with TemporaryDirectory(prefix="allowd-e2e-") as directory:
        cluster = RedisCluster(Path(directory), masters, replicas, *options)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()
