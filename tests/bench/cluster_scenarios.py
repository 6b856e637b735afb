# SPDX-License-Identifier: MIT
"""A Redis Cluster: the agent in front of it, against one script call per request by a client that knows the slots."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import wire
from load import Load, merged
from redis_scenarios import against_baseline
from redis_sides import wait_for_store
from scenario import Options, Result
from servers import BenchError, Stage, free_port

_LIMIT = '[limits.bench]\nrate = "1000000/s"\nburst = 1000000'
_MASTERS = 3
_SLOTS = 16_384
_CONNECTIONS, _KEYS = 64, 10_000
_LOAD = ("--connections", str(_CONNECTIONS), "--depth", "16", "--keys", str(_KEYS))
_READY_SECONDS = 30.0


class _Cluster:
    """Masters without replicas. Of a stage, which ends them."""

    def __init__(self, stage: Stage, cleanup: ExitStack) -> None:
        self._stage = stage
        bus_ports = [free_port() for _ in range(_MASTERS)]
        self.ports = [
            stage.start_redis(
                *("--cluster-enabled", "yes"),
                *("--cluster-port", str(bus)),
                *("--cluster-config-file", f"nodes-{bus}.conf"),
            )
            for bus in bus_ports
        ]
        self._nodes = [cleanup.enter_context(wire.RedisClient(port)) for port in self.ports]
        self._ends = [_SLOTS * (number + 1) // _MASTERS for number in range(_MASTERS)]
        for number, (node, end) in enumerate(zip(self._nodes, self._ends, strict=True)):
            first = self._ends[number - 1] if number > 0 else 0
            node.call("CLUSTER", "ADDSLOTSRANGE", str(first), str(end - 1))
            node.call("CLUSTER", "SET-CONFIG-EPOCH", str(number + 1))
            if number > 0:
                node.call("CLUSTER", "MEET", "127.0.0.1", str(self.ports[0]), str(bus_ports[0]))
        give_up = time.monotonic() + _READY_SECONDS
        while not all(self._is_ready(node) for node in self._nodes):
            if time.monotonic() > give_up:
                raise BenchError(f"the Cluster was not whole within {_READY_SECONDS:g} s")
            time.sleep(0.05)

    @property
    def lines(self) -> str:
        """Of an agent's [redis] table."""
        return "cluster = [ " + ", ".join(f'"redis://127.0.0.1:{port}"' for port in self.ports) + " ]"

    def prefixes(self) -> list[str]:
        """For each master, what puts a key there."""
        found: dict[int, str] = {}
        for number in range(1000):
            slot = int(self._nodes[0].call("CLUSTER", "KEYSLOT", f"{{{number}}}"))
            found.setdefault(next(at for at, end in enumerate(self._ends) if slot < end), f"{{{number}}}:")
        return [found[number] for number in range(_MASTERS)]

    # As a single Redis is measured

    def cpu_seconds(self) -> float:
        return sum(node.cpu_seconds() for node in self._nodes)

    def script_calls(self) -> int:
        return sum(node.script_calls() for node in self._nodes)

    @staticmethod
    def _is_ready(node: wire.RedisClient) -> bool:
        info = node.call("CLUSTER", "INFO").decode()
        return "cluster_state:ok" in info and f"cluster_known_nodes:{_MASTERS}\r" in info


def _ask_masters(stage: Stage, cluster: _Cluster, prefixes: Sequence[str], *options: str) -> Load:
    """All masters at once, each with its share of the connections and of the keys."""
    running = [
        stage.start_redis_baseline(
            port,
            *("--connections", str((_CONNECTIONS + _MASTERS - 1 - number) // _MASTERS)),
            *("--keys", str(_KEYS // _MASTERS), "--key-prefix", prefix),
            *options,
        )
        for number, (port, prefix) in enumerate(zip(cluster.ports, prefixes, strict=True))
    ]
    loads = [stage.finish_load(process) for process in running]
    return replace(
        merged(loads), rate=sum(load.rate for load in loads), seconds=max(load.seconds for load in loads)
    )


def redis_cluster_64x16(options: Options) -> Result:
    with Stage(options.bin_directory) as stage, ExitStack() as cleanup:
        cluster = _Cluster(stage, cleanup)
        agent = stage.start_agent(_LIMIT, redis_lines=cluster.lines)
        wait_for_store(stage, agent)
        ask_masters = partial(_ask_masters, stage, cluster, cluster.prefixes())
        return against_baseline(options, cluster, agent, ask_masters, partial(stage.load, agent, *_LOAD))
