# SPDX-License-Identifier: MIT
"""Scenarios on Redis: the agent in front of it, against one script call per request without an agent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import wire
from load import Load, alternate, middle_ratio
from redis_sides import Counted, Side, Slice, check_sources, measured, together, wait_for_store
from scenario import Figure, Options, Result, column, say_round
from servers import Server, Stage

_LIMIT = '[limits.bench]\nrate = "1000000/s"\nburst = 1000000'
_COMMON = ("--connections", "64", "--keys", "10000")
_ALL_KEYS_TWICE = ("--count", "20000")
_SLICES = 4
_SLICE_WARMUP = "0.1"


def redis_64(options: Options, *, depth: int, rate_at_least: float, cpu_at_least: float) -> Result:
    with Stage(options.bin_directory) as stage:
        port = stage.start_redis()
        agent = stage.start_agent(_LIMIT, redis_port=port)
        wait_for_store(stage, agent)
        ask_redis = partial(stage.redis_baseline, port, *_COMMON)
        ask_agent = partial(stage.load, agent, *_COMMON, "--depth", str(depth))
        with wire.RedisClient(port) as redis:
            return against_baseline(
                options, redis, agent, ask_redis, ask_agent, rate_at_least=rate_at_least, cpu_at_least=cpu_at_least
            )


def against_baseline(
    options: Options,
    redis: Counted,
    agent: Server,
    ask_redis: Callable[..., Load],
    ask_agent: Callable[..., Load],
    *,
    rate_at_least: float | None = None,
    cpu_at_least: float | None = None,
) -> Result:
    """Both sides in turn, after each has seen all keys; they take a load's options."""
    rounds: list[dict[str, Any]] = []
    ask_redis(*_ALL_KEYS_TWICE)
    ask_agent(*_ALL_KEYS_TWICE)
    slice_options = ("--seconds", str(options.seconds / _SLICES), "--warmup", _SLICE_WARMUP)
    run = partial(measured, redis, agent)
    for number in range(1, options.rounds + 1):
        baseline_slices, agent_slices = alternate(
            _SLICES,
            partial(run, partial(ask_redis, *slice_options)),
            partial(run, partial(ask_agent, *slice_options)),
        )
        rounds.append(_round(number, baseline_slices, agent_slices))
    return Result(
        [
            Figure("agent's decisions per second / baseline's", column(rounds, "rate_ratio"), at_least=rate_at_least),
            Figure(
                "Redis CPU per decision, baseline / agent", column(rounds, "redis_cpu_ratio"), at_least=cpu_at_least
            ),
            Figure("agent's CPU per query, us", column(rounds, "agent_cpu_us")),
            Figure("scripts run per decision through the agent", column(rounds, "scripts"), digits=3),
        ],
        rounds,
    )


redis_64x1 = partial(redis_64, depth=1, rate_at_least=1.7, cpu_at_least=3.5)
redis_64x16 = partial(redis_64, depth=16, rate_at_least=4.0, cpu_at_least=6.0)


def _round(number: int, baseline_slices: Sequence[Slice], agent_slices: Sequence[Slice]) -> dict[str, Any]:
    baseline, agent = together(baseline_slices), together(agent_slices)
    check_sources(agent.load)
    say_round(number, _describe("baseline", baseline), _describe("agent", agent))
    baseline_loads, agent_loads = [part.load for part in baseline_slices], [part.load for part in agent_slices]
    return {
        "baseline": asdict(baseline),
        "agent": asdict(agent),
        "rate_ratio": middle_ratio(agent_loads, baseline_loads, "rate"),
        "redis_cpu_ratio": baseline.redis_cpu_us / agent.redis_cpu_us,
        "agent_cpu_us": agent.agent_cpu_us,
        "scripts": agent.scripts,
    }


def _describe(name: str, side: Side) -> str:
    return f"{name} {side.load.rate:,.0f}/s, p50 {side.load.p50_us:,.0f}, Redis CPU {side.redis_cpu_us:.2f} us"
