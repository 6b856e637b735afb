# SPDX-License-Identifier: MIT
"""Scenarios on Redis: the agent in front of it, against one script call per request without an agent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import procfs
import wire
from decision import check_decision
from load import Load, alternate, merged, middle_ratio
from scenario import Figure, Options, Result, column, say_round
from servers import BenchError, Server, Stage

_LIMIT = '[limits.bench]\nrate = "1000000/s"\nburst = 1000000'
_COMMON = ("--connections", "64", "--keys", "10000")
_ALL_KEYS_TWICE = ("--count", "20000")
_SLICES = 4
_SLICE_WARMUP = "0.1"
_CONNECT_SECONDS = 5.0
_MOST_FALLBACKS = 0.001  # of the replies looked at; more would flatter the agent


@dataclass(frozen=True)
class _Slice:
    """One run of one side, and what Redis and the agent spent on it, warm-up included."""

    load: Load
    redis_cpu_seconds: float
    agent_cpu_seconds: float
    scripts: int


@dataclass(frozen=True)
class _Side:
    """One side's slices of a round together; CPU and scripts per decision."""

    load: Load
    redis_cpu_us: float
    agent_cpu_us: float
    scripts: float


def redis_64(options: Options, *, depth: int, rate_at_least: float, cpu_at_least: float) -> Result:
    rounds: list[dict[str, Any]] = []
    with Stage(options.bin_directory) as stage:
        port = stage.start_redis()
        agent = stage.start_agent(_LIMIT, redis_port=port)
        _wait_for_store(stage, agent)
        ask_redis = partial(stage.redis_baseline, port, *_COMMON)
        ask_agent = partial(stage.load, agent, *_COMMON, "--depth", str(depth))
        ask_redis(*_ALL_KEYS_TWICE)
        ask_agent(*_ALL_KEYS_TWICE)
        slice_options = ("--seconds", str(options.seconds / _SLICES), "--warmup", _SLICE_WARMUP)
        with wire.RedisClient(port) as redis:
            measured = partial(_measured, redis, agent)
            for number in range(1, options.rounds + 1):
                baseline_slices, agent_slices = alternate(
                    _SLICES,
                    partial(measured, partial(ask_redis, *slice_options)),
                    partial(measured, partial(ask_agent, *slice_options)),
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


def _wait_for_store(stage: Stage, agent: Server) -> None:
    """The agent listens before its link to Redis stands; wait until Redis decides."""
    give_up = time.monotonic() + _CONNECT_SECONDS
    while True:
        reply = stage.load(agent, "--count", "1", "--keys", "1", "--first-reply").first_reply
        try:
            return check_decision(reply, "store")
        except BenchError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)


def _measured(redis: wire.RedisClient, agent: Server, run: Callable[[], Load]) -> _Slice:
    redis_cpu, agent_cpu, scripts = redis.cpu_seconds(), procfs.cpu_seconds(agent.pid), redis.script_calls()
    load = run()
    return _Slice(
        load,
        redis_cpu_seconds=redis.cpu_seconds() - redis_cpu,
        agent_cpu_seconds=procfs.cpu_seconds(agent.pid) - agent_cpu,
        scripts=redis.script_calls() - scripts,
    )


def _together(slices: Sequence[_Slice]) -> _Side:
    load = merged([part.load for part in slices])
    return _Side(
        load,
        redis_cpu_us=sum(part.redis_cpu_seconds for part in slices) / load.total_queries * 1e6,
        agent_cpu_us=sum(part.agent_cpu_seconds for part in slices) / load.total_queries * 1e6,
        scripts=sum(part.scripts for part in slices) / load.total_queries,
    )


def _round(number: int, baseline_slices: Sequence[_Slice], agent_slices: Sequence[_Slice]) -> dict[str, Any]:
    baseline, agent = _together(baseline_slices), _together(agent_slices)
    if agent.load.fallback_samples > _MOST_FALLBACKS * agent.load.samples:
        raise BenchError(
            f"{agent.load.fallback_samples} of {agent.load.samples} replies looked at were answered without Redis"
        )
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


def _describe(name: str, side: _Side) -> str:
    return f"{name} {side.load.rate:,.0f}/s, p50 {side.load.p50_us:,.0f}, Redis CPU {side.redis_cpu_us:.2f} us"
