# SPDX-License-Identifier: MIT
"""Scenarios about keys that somebody makes up: asked once each, while a second client asks about keys that are known."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

import procfs
import wire
from load import Load, merged
from redis_sides import check_sources, wait_for_store
from scenario import Figure, Options, Result
from servers import BenchError, Server, Stage

_PERMITS_PER_SECOND = 10 / 60
_BURST = 10
_LIMIT = '[limits.bench]\nrate = "10/min"\n'
_LIFE_SECONDS = _BURST / _PERMITS_PER_SECOND + 60  # of a key in Redis, at most
_NEW_KEYS_PER_SECOND = 500

_DEPTH = ("--connections", "64", "--depth", "16")
_AT_A_TIME = 1_000_000
_RESIDENT_AFTER = (1, 5, 10)  # of these pieces
_LOOKED_AT = 200
_MEBIBYTE = 1024 * 1024

_KNOWN_KEYS = 20
_PAUSE_SECONDS = 0.005
_LOOK_SECONDS = 1.0  # how often at the loop's turns: `stats` knows the running second and the one before


def spoofed_keys(options: Options) -> Result:
    """With a budget of new keys: what Redis is left with has a bound, and RSS is flat."""
    return _flood(options, _NEW_KEYS_PER_SECOND)


def spoofed_keys_unbounded(options: Options) -> Result:
    """Without one."""
    return _flood(options, None)


def _flood(options: Options, budget: int | None) -> Result:
    """Once, whatever the number of rounds: what matters is how much is left behind."""
    more = f"max_new_keys_per_second = {budget}\n" if budget else ""
    with Stage(options.bin_directory) as stage:
        port = stage.start_redis()
        agent = stage.start_agent(_LIMIT + more, redis_port=port)
        wait_for_store(stage, agent)
        with wire.RedisClient(port, timeout=60) as redis, _Watcher(agent) as watcher:
            known = redis.call("DBSIZE")
            resident, used = [procfs.resident_bytes(agent.pid)], redis.used_bytes()
            turns_before = wire.ask_agent(agent.path, "stats")
            begun = time.monotonic()
            load = _make_up_keys(stage, agent, options.spoofed_keys, resident)
            elapsed = time.monotonic() - begun
            turns = wire.ask_agent(agent.path, "stats")
            keys_after, used_after = redis.call("DBSIZE"), redis.used_bytes()
            lives = [redis.call("TTL", redis.call("RANDOMKEY").decode()) for _ in range(_LOOKED_AT)]
            if min(lives) == -1:
                raise BenchError("Redis was left with keys that never expire")
            peak = procfs.peak_resident_bytes(agent.pid)
    check_sources(load)
    bound = budget * _LIFE_SECONDS + budget + known + 1 if budget else None
    seen = watcher.seen
    return Result(
        [
            Figure("made-up keys per second, while they are asked", [load.rate], digits=0),
            *_resident_figures(resident, peak),
            Figure("Redis: memory before, MiB", [used / _MEBIBYTE]),
            Figure("  after", [used_after / _MEBIBYTE]),
            Figure("Redis: keys after", [keys_after], at_most=bound, digits=0),
            Figure(f"  longest life left, of {_LOOKED_AT} keys, s", [max(lives)], digits=0),
            Figure("known keys: queries", [seen.queries], digits=0),
            Figure("  answered otherwise than their bucket says", [len(seen.wrong)], at_most=0, digits=0),
            Figure("longest turn of the loop, ms", [seen.longest_wall * 1e3], digits=3),
            Figure("  of processor time, ms (0: none was over 1 ms)", [seen.longest_cpu * 1e3], at_most=1, digits=3),
            Figure("turns over 1 ms", [_rise(turns_before, turns, "loop_long_turns_total")], digits=0),
            Figure("  in processor time", [_rise(turns_before, turns, "loop_long_turns_cpu_total")], digits=0),
            Figure("  of so many turns", [_rise(turns_before, turns, "loop_turns_total")], digits=0),
        ],
        [{"load": asdict(load), "elapsed": elapsed, "resident": resident, "wrong": seen.wrong[:_LOOKED_AT]}],
        [
            f"{load.total_queries:,} keys asked once each in {elapsed:.0f} s, encoding them included; "
            f"{load.total_queries - load.total_allowed:,} refused",
            *seen.wrong[:3],
        ],
    )


def _make_up_keys(stage: Stage, agent: Server, count: int, resident: list[int]) -> Load:
    """In pieces, as the generator encodes all that it asks beforehand; notes the agent's memory after each."""
    loads = []
    for begun in range(0, count, _AT_A_TIME):
        keys = min(_AT_A_TIME, count - begun)
        new = ("--insert", str(keys), "--key-prefix", f"spoofed{begun // _AT_A_TIME:04}:")
        loads.append(stage.load(agent, *_DEPTH, *new))
        resident.append(procfs.resident_bytes(agent.pid))
    return merged(loads)


def _resident_figures(resident: list[int], peak: int) -> list[Figure]:
    marks = [mark for mark in _RESIDENT_AFTER if mark < len(resident)]
    if len(resident) - 1 not in marks:
        marks.append(len(resident) - 1)
    return [
        Figure("agent: resident memory before, MiB", [resident[0] / _MEBIBYTE]),
        *(Figure(f"  after piece {mark}, of a million keys", [resident[mark] / _MEBIBYTE]) for mark in marks),
        Figure("  at most", [peak / _MEBIBYTE]),
    ]


def _rise(before: dict[str, Any], after: dict[str, Any], name: str) -> float:
    return float(after[name] - before[name])


@dataclass
class _Seen:
    queries: int = 0
    wrong: list[str] = field(default_factory=list)
    longest_wall: float = 0.0
    longest_cpu: float = 0.0


@dataclass
class _Bucket:
    """What a known key has left, between bounds: when Redis decided is known up to the time of the query."""

    low: float = _BURST
    high: float = _BURST
    earliest: float = 0.0  # the last charge
    latest: float = 0.0

    def judge(self, decision: list[Any], asked: float, answered: float) -> str | None:
        """Says what is wrong with an answer, and takes what it took."""
        allowed, _, remaining, _, _, _, source, tier = decision[:8]
        low = min(_BURST, self.low + max(0.0, asked - self.latest) * _PERMITS_PER_SECOND)
        high = min(_BURST, self.high + (answered - self.earliest) * _PERMITS_PER_SECOND)
        # A permit that came back just now may not have been noticed: the agent's clock of Redis is not exact.
        slack = 0.01
        wrong = None
        if tier != "" or source == "fallback":
            wrong = f"by the tier {tier!r}, source {source!r}"
        elif allowed and high + slack < 1 or not allowed and low - slack >= 1:
            wrong = f"allowed is {allowed}, of {low:.2f} to {high:.2f} left"
        elif allowed and not int(low - slack) - 1 <= remaining <= int(high + slack) - 1:
            wrong = f"{remaining} left, of {low - 1:.2f} to {high - 1:.2f}"
        if allowed:
            self.low, self.high = max(0.0, low - 1), max(0.0, high - 1)
            self.earliest, self.latest = asked, answered
        return wrong


class _Watcher:
    """Asks about known keys, one query at a time, as long as the context lasts; looks at the loop's turns too."""

    def __init__(self, agent: Server) -> None:
        self._agent = agent
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._error: Exception | None = None
        self._buckets = {f"known-{number}": _Bucket() for number in range(_KNOWN_KEYS)}
        self.seen = _Seen()

    def __enter__(self) -> _Watcher:
        with wire.AgentClient(self._agent.path) as client:
            for key in self._buckets:  # so that all are known before the flood
                self._ask(client, key)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with wire.AgentClient(self._agent.path) as client:
                while not self._stop.is_set():
                    self._look(client)
                    look_again = time.monotonic() + _LOOK_SECONDS
                    while time.monotonic() < look_again and not self._stop.is_set():
                        for key in self._buckets:
                            self._ask(client, key)
                            time.sleep(_PAUSE_SECONDS)
                self._look(client)
        except (OSError, wire.WireError) as error:
            self._error = error

    def _ask(self, client: wire.AgentClient, key: str) -> None:
        asked = time.monotonic()
        decision = client.ask("allow", "bench", key)
        wrong = self._buckets[key].judge(decision, asked, time.monotonic())
        self.seen.queries += 1
        if wrong:
            self.seen.wrong.append(f"{key}: {wrong}")

    def _look(self, client: wire.AgentClient) -> None:
        stats = client.ask("stats")
        seen = self.seen
        seen.longest_wall = max(seen.longest_wall, stats["loop_recent_longest_turn_seconds"])
        seen.longest_cpu = max(seen.longest_cpu, stats["loop_recent_longest_turn_cpu_seconds"])
