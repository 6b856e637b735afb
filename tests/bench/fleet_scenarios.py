# SPDX-License-Identifier: MIT
"""Scenarios about one key that several agents share: what they admit together, of what the limit allows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import wire
from decision import all_allowed
from load import Load
from redis_sides import check_sources, wait_for_store
from scenario import Figure, Options, Result, column, say_round
from servers import BenchError, Server, Stage

_READY_LIMIT = '[limits.ready]\nrate = "1000/s"'
_RATE = 4000  # a second: two processors carry the demand for more than that, and all who are refused
_BURST = 2 * _RATE
_LIMIT = f'[limits.bench]\nrate = "{_RATE}/s"\nburst = {_BURST}\n'

_SHARDS = 4
_SPLIT_AGENTS = 8
_LEASED_AGENTS = 4
_LEASE = _BURST * 5 // 100

_DEMAND = ("--connections", "2", "--depth", "2", "--keys", "1")  # of each generator; all together far over the limit
_DRAIN = ("--seconds", "2", "--warmup", "0.1")
_LEAST_SECONDS = 5.0  # some turns of the trust put in what Redis said
_WARMUP = ("--warmup", "0.5")


def split_4_shards(options: Options) -> Result:
    rounds = []
    for number in range(1, options.rounds + 1):
        with Stage(options.bin_directory) as stage:
            ports = [stage.start_redis() for _ in range(_SHARDS)]
            limits = f"{_LIMIT}split = {_SHARDS}\n{_READY_LIMIT}"
            fleet = _Fleet(stage, [stage.start_agent(limits, shards=ports) for _ in range(_SPLIT_AGENTS)])
            parts = [_Part(port) for port in ports]
            row = fleet.round(options, lambda: [part.state() for part in parts])
            granted = [after.granted_since(before) for before, after in zip(row["before"], row["after"], strict=True)]
            fair = sum(granted) / _SHARDS
            row = {
                **{name: row[name] for name in ("share_admitted", "share_of_bound", "loads")},
                "granted": granted,
                "granted_per_seen": sum(granted) / row["admitted"],
                "least": min(granted) / fair,
                "most": max(granted) / fair,
            }
            rounds.append(row)
            say_round(number, f"{row['share_admitted']:.3f} admitted", "by part " + " ".join(f"{n:,}" for n in granted))
    return Result(
        [
            *_figures(rounds, "burst + rate * T"),
            Figure("grants of the part that gave least / fair share", column(rounds, "least"), at_least=0.85, digits=3),
            Figure("grants of the part that gave most / fair share", column(rounds, "most"), at_most=1.15, digits=3),
            Figure("permits that the parts gave / queries allowed", column(rounds, "granted_per_seen"), digits=4),
        ],
        rounds,
    )


def leased_4_agents(options: Options) -> Result:
    rounds = []
    for number in range(1, options.rounds + 1):
        with Stage(options.bin_directory) as stage:
            port = stage.start_redis()
            limits = f'{_LIMIT}lease = "5%"\n{_READY_LIMIT}'
            fleet = _Fleet(stage, [stage.start_agent(limits, redis_port=port) for _ in range(_LEASED_AGENTS)])
            with wire.RedisClient(port) as redis:
                row = fleet.round(options, redis.script_calls, _LEASED_AGENTS * _LEASE)
            stats = [wire.ask_agent(agent.path, "stats") for agent in fleet.agents]
            leased = sum(entry["prefilter_leased_grants_total"] for entry in stats)
            row = {
                **{name: row[name] for name in ("share_admitted", "share_of_bound", "loads")},
                "share_leased": leased / fleet.admitted,
                "scripts_per_s": (row["after"] - row["before"]) / row["elapsed"],
            }
            rounds.append(row)
            say_round(number, f"{row['share_admitted']:.3f} admitted", f"{row['share_leased']:.2f} of it from leases")
    return Result(
        [
            *_figures(rounds, "burst + rate * T + leases"),
            Figure("share of the grants that came from leases", column(rounds, "share_leased")),
            Figure("scripts per second, of all agents", column(rounds, "scripts_per_s"), digits=0),
        ],
        rounds,
    )


def _figures(rounds: list[dict[str, Any]], bound: str) -> list[Figure]:
    return [
        Figure("share of the limit admitted", column(rounds, "share_admitted"), at_least=0.97, digits=3),
        Figure(f"all that was ever admitted / ({bound})", column(rounds, "share_of_bound"), at_most=1, digits=3),
    ]


class _Fleet:
    """Agents that share the key, each with a generator of its own."""

    def __init__(self, stage: Stage, agents: Sequence[Server]) -> None:
        self._stage = stage
        self.agents = agents
        self.admitted = 0  # since the first query
        for agent in agents:
            wait_for_store(stage, agent, "ready")

    def round(self, options: Options, look: Any, beyond: int = 0) -> dict[str, Any]:
        """Spends the burst, then measures; `look` is asked before and after, `beyond` may be admitted more."""
        began = time.monotonic()
        self._load(_DRAIN)
        before, started, drained = look(), time.monotonic(), self.admitted
        loads = self._load(("--seconds", str(max(options.seconds, _LEAST_SECONDS)), *_WARMUP))
        ended = time.monotonic()
        return {
            "before": before,
            "after": look(),
            "elapsed": ended - started,
            "admitted": self.admitted - drained,
            "loads": [asdict(load) for load in loads],
            "share_admitted": sum(load.allowed / load.seconds for load in loads) / _RATE,
            "share_of_bound": self.admitted / (_BURST + _RATE * (ended - began) + beyond),
        }

    def _load(self, options: Sequence[str]) -> list[Load]:
        running = [self._stage.start_load(agent, *_DEMAND, *options, "--first-reply") for agent in self.agents]
        loads = [self._stage.finish_load(process) for process in running]
        for load in loads:
            check_sources(load)
            self.admitted += all_allowed(load)
        return loads


@dataclass(frozen=True)
class _State:
    """A token bucket's value in Redis: OPERATING.md, "What is in Redis"."""

    unit: int
    last: int
    used: int

    def granted_since(self, before: _State) -> int:
        """Permits taken since, if the bucket was never full meanwhile: what is used grew by them, less the refill."""
        refilled = (self.last - before.last) * (_RATE // _SHARDS) * self.unit // 1_000_000
        return (self.used - before.used + refilled) // self.unit


class _Part:
    """The part of the key that one Redis server keeps."""

    def __init__(self, port: int) -> None:
        self._port = port

    def state(self) -> _State:
        with wire.RedisClient(self._port) as redis:
            keys = [key for key in redis.call("KEYS", "*:bench:*")]
            if len(keys) != 1:
                raise BenchError(f"a server keeps {len(keys)} parts of the key, not one")
            value = redis.call("GET", keys[0].decode())
        unit, last, used = (int.from_bytes(value[at : at + 7], "little") for at in (1, 8, 15))
        return _State(unit, last, used)
