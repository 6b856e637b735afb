# SPDX-License-Identifier: MIT
"""Scenarios about what the agent takes up: idle, and while its table grows to a million keys."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import procfs
import wire
from decision import check_decision
from load import Load
from scenario import Figure, Options, Result, column, say_round
from servers import Server, Stage

_IDLE_LIMIT = '[limits.bench]\nrate = "100/s"'
_SLOW_LIMIT = '[limits.bench]\nrate = "1/h"\nburst = 10'  # no key is full again while we look
_WATCH_LIMIT = '[limits.watch]\nrate = "1000000/s"\nburst = 1000000'

_IDLE_SECONDS = 5.0
_SETTLE_SECONDS = 1.0
_MEBIBYTE = 1024 * 1024

_MILLION = 1_000_000
_TABLE_KEYS = 1_100_000
_INSERT_DEPTH = 64
_SLOW_US = 1024  # "a millisecond", as the histogram of doublings has it
_MOST_GROWTH_ROUNDS = 3


def idle(options: Options) -> Result:
    """Two fresh agents side by side, looked at once: nothing here varies from round to round."""
    with Stage(options.bin_directory) as stage:
        agents = {
            "memory store": stage.start_agent(_IDLE_LIMIT),
            "on Redis": stage.start_agent(_IDLE_LIMIT, redis_port=stage.start_redis()),
        }
        time.sleep(_SETTLE_SECONDS)
        before = {name: procfs.voluntary_switches(agent.pid) for name, agent in agents.items()}
        time.sleep(_IDLE_SECONDS)
        figures = []
        for name, agent in agents.items():
            wakeups = (procfs.voluntary_switches(agent.pid) - before[name]) / _IDLE_SECONDS
            resident = procfs.resident_bytes(agent.pid) / _MEBIBYTE
            figures.append(Figure(f"{name}: resident memory, MiB", [resident], at_most=12))
            figures.append(Figure(f"{name}: wake-ups per second (asked \u2264 2 per timer)", [wakeups]))
    return Result(figures)


def million_keys(options: Options) -> Result:
    rounds: list[dict[str, Any]] = []
    notes: list[str] = []
    for number in range(1, min(options.rounds, _MOST_GROWTH_ROUNDS) + 1):
        with Stage(options.bin_directory) as stage:
            figures = _grow_once(stage)
        notes = [f"stats says: {name} = {value}" for name, value in figures["stats"].items()]
        rounds.append(figures)
        say_round(
            number,
            f"{figures['bytes_per_key']:.1f} bytes a key",
            *(
                f"{kind}: max {figures[kind]['max_us']:,.0f}, p99.9 {figures[kind]['p999_us']:,.0f} us"
                for kind in ("growing", "steady")
            ),
        )

    def beside(kind: str, name: str, label: str, at_most: float | None = None) -> Figure:
        values = [float(figures[kind][name]) for figures in rounds]
        return Figure(label, values, at_most=at_most, digits=0)

    return Result(
        [
            Figure("resident bytes per key", column(rounds, "bytes_per_key"), at_most=96, digits=1),
            beside("growing", "max_us", "longest query beside a growing table, us", at_most=1000),
            beside("steady", "max_us", "  the same load without growth"),
            beside("growing", "slow_in_million", "queries over 1 ms, of a million, beside a growing table"),
            beside("steady", "slow_in_million", "  the same load without growth"),
            beside("growing", "p999_us", "p99.9 beside a growing table, us"),
            beside("steady", "p999_us", "  the same load without growth"),
        ],
        rounds,
        notes or ["stats does not say how long a growth step took"],
    )


def _grow_once(stage: Stage) -> dict[str, Any]:
    agent = stage.start_agent(f"{_SLOW_LIMIT}\n{_WATCH_LIMIT}", max_keys=_TABLE_KEYS)
    check_decision(stage.load(agent, "--count", "1", "--first-reply").first_reply, "local")
    before = procfs.resident_bytes(agent.pid)
    growing = _watched_insert(stage, agent)
    grown = procfs.resident_bytes(agent.pid) - before
    steady = _watched_insert(stage, agent)  # the same million keys again: the same load, and no new key
    return {
        "bytes_per_key": grown / _MILLION,
        "growing": _watched(growing),
        "steady": _watched(steady),
        "stats": dict(_growth_numbers(wire.ask_agent(agent.path, "stats"))),
    }


def _watched_insert(stage: Stage, agent: Server) -> Load:
    """Asks for a million keys; returns what a second client, one request at a time, saw meanwhile."""
    watcher = stage.start_load(agent, "--limit", "watch", "--keys", "1", "--seconds", "3600")
    time.sleep(0.1)
    # The other client is nice, or the watcher would mostly measure how it waits for a processor.
    stage.nice_load(agent, "--insert", str(_MILLION), "--depth", str(_INSERT_DEPTH))
    return stage.stop_load(watcher)


def _watched(load: Load) -> dict[str, Any]:
    return {**asdict(load), "slow_in_million": load.slower_than(_SLOW_US) * 1e6}


def _growth_numbers(stats: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """All numbers in the agent's `stats` whose name speaks of growing a table."""
    if isinstance(stats, dict):
        for name, value in stats.items():
            yield from _growth_numbers(value, f"{path}.{name}" if path else str(name))
    elif isinstance(stats, (int, float)) and any(word in path for word in ("grow", "rehash")):
        yield path, stats
