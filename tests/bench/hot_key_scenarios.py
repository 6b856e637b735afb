# SPDX-License-Identifier: MIT
"""Scenarios about keys that are asked far more often than others: what the agent spares Redis, and what that costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import wire
from decision import all_allowed
from load import Load, alternate, merged, middle_ratio
from local_scenarios import round_against_echo
from redis_sides import Side, Slice, check_sources, measured, together, wait_for_store
from scenario import Figure, Options, Result, column, say_round
from servers import BenchError, Server, Stage

_READY_LIMIT = '[limits.ready]\nrate = "1000/s"'  # asked until Redis decides, so that `bench` is still untouched
_ONE_KEY = ("--keys", "1")

# What the agent's scripts call in Redis, and the agent itself does not; INFO is ours.
_NOT_SENT_BY_AGENT = frozenset(
    {"get", "mget", "set", "setex", "setrange", "del", "incrby", "pttl", "pexpire", "expire", "info"}
)

_FULL_SPEED = ("--connections", "1", "--depth", "128", *_ONE_KEY)
_BELOW_A_MILLION = ("--connections", "1", "--depth", "16", *_ONE_KEY)  # a second
_DRAIN_SECONDS = "0.2"
_LEAST_STEADY_SECONDS = 5.0  # some turns of the trust put in what Redis said, and of the agent's look at its clock

_UNDER_LIMITS = '[limits.bench]\nrate = "10000000/s"\n[limits.exact]\nrate = "1/h"\nburst = 1000000'
_UNDER_SLICES = 4
_UNDER_WARMUP = ("--warmup", "0.1")
_ONE_EACH = ("--connections", "64", "--depth", "1", *_ONE_KEY)
_MANY_EACH = ("--connections", "64", "--depth", "64", *_ONE_KEY)
_EXACT_COUNT = "200000"  # with both loads less than the burst of `exact`
_FIRST_KEY = "0000000"

# The walk's first 100,000 queries hold some 24,000 keys; 40 of each is half of them.
_ZIPF_LIMIT = '[limits.bench]\nrate = "1/1000s"\nburst = 40'
_ZIPF_BASELINE_LIMIT = ("--rate", "0.001", "--burst", "40")
_ZIPF = ("--connections", "64", "--keys", "1000000", "--zipf", "1.1", "--count", "100000")
_ZIPF_DEPTH = ("--depth", "16")
_ZIPF_SLICES = 2


def hot_key_1_per_min(options: Options) -> Result:
    rounds = _rounds_over_limit(options, "1/min", 1 / 60)
    return Result(
        [
            Figure("Redis commands that the agent sends per second", column(rounds, "commands_per_s"), at_most=2),
            Figure("  of these, scripts", column(rounds, "scripts_per_s")),
            *_cost_figures(rounds),
        ],
        rounds,
    )


def hot_key_100_per_s(options: Options) -> Result:
    rounds = _rounds_over_limit(options, "100/s", 100)
    return Result(
        [
            Figure("scripts per second beyond one per admitted query", column(rounds, "vain_per_s"), at_most=2),
            Figure("scripts per admitted query", column(rounds, "scripts_per_admitted")),
            Figure("Redis commands that the agent sends per second", column(rounds, "commands_per_s")),
            Figure("share of the limit admitted", column(rounds, "share_admitted"), at_least=0.97, digits=3),
            *_cost_figures(rounds),
        ],
        rounds,
    )


def hot_key_leased(options: Options) -> Result:
    rounds = _rounds_over_limit(options, "1000000/s", 1_000_000, 'burst = 1000000\nlease = "5%"\n', _BELOW_A_MILLION)
    return Result(
        [
            Figure("scripts per second", column(rounds, "scripts_per_s"), at_most=50),
            Figure("share of the limit asked for and admitted", column(rounds, "share_admitted"), digits=3),
            *_cost_figures(rounds),
        ],
        rounds,
    )


def _cost_figures(rounds: list[dict[str, Any]]) -> list[Figure]:
    return [
        Figure("agent's CPU per query / echo's", column(rounds, "cpu_ratio"), at_most=2.2),
        Figure("agent's CPU per query, us", column(rounds, "agent_cpu_us"), digits=3),
    ]


def _rounds_over_limit(
    options: Options, rate: str, permits_per_second: float, more: str = "", pressure: Sequence[str] = _FULL_SPEED
) -> list[dict[str, Any]]:
    rounds = []
    with Stage(options.bin_directory) as stage:
        port, echo = stage.start_redis(), stage.start_echo()
        agent = stage.start_agent(f'[limits.bench]\nrate = "{rate}"\n{more}{_READY_LIMIT}', redis_port=port)
        wait_for_store(stage, agent, "ready")
        with wire.RedisClient(port) as redis:
            for number in range(1, options.rounds + 1):
                costs = round_against_echo(stage, echo, agent, options.seconds, *pressure)
                asked = _asked_of_redis(stage, redis, agent, options.seconds, permits_per_second, pressure)
                rounds.append({**costs, **asked})
                say_round(
                    number,
                    *(
                        f"{name} {costs[name]['rate']:,.0f}/s, CPU {costs[f'{name}_cpu_us']:.3f} us"
                        for name in ("echo", "agent")
                    ),
                    f"{asked['commands_per_s']:.2f} commands/s, {asked['admitted']} admitted",
                )
    return rounds


def _asked_of_redis(
    stage: Stage,
    redis: wire.RedisClient,
    agent: Server,
    seconds: float,
    permits_per_second: float,
    pressure: Sequence[str],
) -> dict[str, Any]:
    """One run without a pause, after a short one that spent the burst: pauses would let permits gather."""
    seconds = max(seconds, _LEAST_STEADY_SECONDS)
    stage.load(agent, *pressure, "--seconds", _DRAIN_SECONDS)
    before, started = redis.command_calls(), time.monotonic()
    load = stage.load(agent, *pressure, "--seconds", str(seconds), "--warmup", "0.1", "--first-reply")
    elapsed, after = time.monotonic() - started, redis.command_calls()
    check_sources(load)
    calls = {name: after[name] - before.get(name, 0) for name in after}
    scripts, admitted = calls["evalsha"], all_allowed(load)
    return {
        "steady": asdict(load),
        "calls": calls,
        "commands_per_s": sum(count for name, count in calls.items() if name not in _NOT_SENT_BY_AGENT) / elapsed,
        "scripts_per_s": scripts / elapsed,
        "admitted": admitted,
        "scripts_per_admitted": scripts / max(admitted, 1),
        "vain_per_s": (scripts - admitted) / elapsed,
        "share_admitted": load.allowed / (permits_per_second * load.seconds),
    }


def hot_key_under_limit(options: Options) -> Result:
    rounds: list[dict[str, Any]] = []
    with Stage(options.bin_directory) as stage:
        port, echo = stage.start_redis(), stage.start_echo()
        agent = stage.start_agent(f"{_UNDER_LIMITS}\n{_READY_LIMIT}", redis_port=port)
        wait_for_store(stage, agent, "ready")
        with wire.RedisClient(port) as redis:
            for number in range(1, options.rounds + 1):
                figures = {
                    **_against_two_echoes(stage, redis, port, echo, agent, options.seconds),
                    **_shared_questions(stage, redis, agent, options.seconds),
                    "miscounted": _miscounted(stage, agent, f"round{number}:"),
                }
                rounds.append(figures)
                say_round(
                    number,
                    f"echo p99 {figures['echo']['p99_us']:,.0f}",
                    f"round trip {figures['ping']['p50_us']:,.0f}",
                    f"agent p99 {figures['agent']['p99_us']:,.0f} us, {figures['agent']['rate']:,.0f}/s",
                    f"64 x 64 {figures['deep']['rate']:,.0f}/s",
                )
    return Result(
        [
            Figure("64 x 1: queries per question", column(rounds, "per_question"), at_least=12, digits=1),
            Figure("64 x 1: p99 / (2 x echo's p99 + round trip)", column(rounds, "p99_ratio"), at_most=1),
            Figure("64 x 64: queries per question", column(rounds, "deep_per_question"), at_least=500, digits=0),
            Figure("permits that the store has miscounted", column(rounds, "miscounted"), at_most=0, digits=0),
        ],
        rounds,
    )


def _against_two_echoes(
    stage: Stage, redis: wire.RedisClient, port: int, echo: Server, agent: Server, seconds: float
) -> dict[str, Any]:
    """A query may have to wait for the question under way before its own: twice, and for Redis."""
    span = ("--seconds", str(seconds / _UNDER_SLICES), *_UNDER_WARMUP)
    echoes, pings, slices = [], [], []
    for _ in range(_UNDER_SLICES):
        echoes.append(stage.load(echo, *_ONE_EACH, *span))
        pings.append(stage.redis_baseline(port, "--ping", "--connections", "1", *span))
        slices.append(measured(redis, agent, partial(stage.load, agent, *_ONE_EACH, *span)))
    side = together(slices)
    _check_none_refused(side.load)
    ratios = [
        part.load.p99_us / (2 * echoed.p99_us + ping.p50_us)
        for part, echoed, ping in zip(slices, echoes, pings, strict=True)
    ]
    return {
        "echo": asdict(merged(echoes)),
        "ping": asdict(merged(pings)),
        "agent": asdict(side.load),
        "per_question": 1 / side.scripts,
        "p99_ratio": statistics.median(ratios),
    }


def _shared_questions(stage: Stage, redis: wire.RedisClient, agent: Server, seconds: float) -> dict[str, Any]:
    span = ("--seconds", str(seconds), *_UNDER_WARMUP)
    side = together([measured(redis, agent, partial(stage.load, agent, *_MANY_EACH, *span))])
    _check_none_refused(side.load)
    return {"deep": asdict(side.load), "deep_per_question": 1 / side.scripts}


def _check_none_refused(load: Load) -> None:
    check_sources(load)
    if load.total_allowed != load.total_queries:
        raise BenchError(f"{load.total_queries - load.total_allowed} of {load.total_queries} queries were refused")


def _miscounted(stage: Stage, agent: Server, prefix: str) -> int:
    """How far the store's count of a key that hardly refills is from the number of queries allowed."""
    exact = ("--limit", "exact", "--key-prefix", prefix, "--count", _EXACT_COUNT, "--first-reply")
    allowed = sum(all_allowed(stage.load(agent, *shape, *exact)) for shape in (_ONE_EACH, _MANY_EACH))
    decision = wire.ask_agent(agent.path, "peek", "exact", prefix + _FIRST_KEY)
    capacity, remaining, source = decision[1], decision[2], decision[6]
    if source != "store":
        raise BenchError(f"the agent looked the key up in {source!r}, not in the store")
    return abs(int(capacity - remaining - allowed))


def zipf_million(options: Options) -> Result:
    """Both sides are asked the very same queries, of keys that are new to them, so they refuse the same ones."""
    rounds: list[dict[str, Any]] = []
    with Stage(options.bin_directory) as stage:
        port = stage.start_redis()
        agent = stage.start_agent(f"{_ZIPF_LIMIT}\n{_READY_LIMIT}", redis_port=port)
        wait_for_store(stage, agent, "ready")
        with wire.RedisClient(port) as redis:
            for number in range(1, options.rounds + 1):
                prefixes = iter([f"zipf{number}.{part}:" for part in range(2 * _ZIPF_SLICES)])

                def ask_redis(prefixes: Any = prefixes) -> Slice:
                    redis.call("FLUSHALL")
                    ask = partial(stage.redis_baseline, port, *_ZIPF, *_ZIPF_BASELINE_LIMIT)
                    return measured(redis, agent, partial(ask, "--key-prefix", next(prefixes)))

                def ask_agent(prefixes: Any = prefixes) -> Slice:
                    redis.call("FLUSHALL")
                    ask = partial(stage.load, agent, *_ZIPF, *_ZIPF_DEPTH)
                    return measured(redis, agent, partial(ask, "--key-prefix", next(prefixes)))

                questions = _questions(agent)
                sides = alternate(_ZIPF_SLICES, ask_redis, ask_agent)
                rounds.append(_zipf_round(number, *sides, _questions(agent) - questions))
    return Result(
        [
            Figure("Redis CPU per decision, baseline / agent", column(rounds, "redis_cpu_ratio"), at_least=12),
            Figure("agent's decisions per second / baseline's", column(rounds, "rate_ratio")),
            Figure("share refused through the agent", column(rounds, "agent_refused"), digits=3),
            Figure("share refused by the baseline", column(rounds, "baseline_refused"), digits=3),
            Figure("agent's CPU per query, us", column(rounds, "agent_cpu_us")),
            Figure("scripts run per decision through the agent", column(rounds, "scripts"), digits=3),
            Figure("keys in these scripts per decision", column(rounds, "questions"), digits=3),
        ],
        rounds,
    )


def _questions(agent: Server) -> int:
    """What the agent has asked its store so far, each about one key."""
    return int(wire.ask_agent(agent.path, "stats")["prefilter_questions_total"])


def _zipf_round(
    number: int, baseline_slices: Sequence[Slice], agent_slices: Sequence[Slice], questions: int
) -> dict[str, Any]:
    baseline, agent = together(baseline_slices), together(agent_slices)
    check_sources(agent.load)
    say_round(
        number,
        *(
            f"{name} {side.load.rate:,.0f}/s, refused {_refused(side):.3f}, Redis CPU {side.redis_cpu_us:.2f} us"
            for name, side in (("baseline", baseline), ("agent", agent))
        ),
    )
    baseline_loads, agent_loads = [part.load for part in baseline_slices], [part.load for part in agent_slices]
    return {
        "baseline": asdict(baseline),
        "agent": asdict(agent),
        "rate_ratio": middle_ratio(agent_loads, baseline_loads, "rate"),
        "redis_cpu_ratio": baseline.redis_cpu_us / agent.redis_cpu_us,
        "agent_cpu_us": agent.agent_cpu_us,
        "agent_refused": _refused(agent),
        "baseline_refused": _refused(baseline),
        "scripts": agent.scripts,
        "questions": questions / agent.load.total_queries,
    }


def _refused(side: Side) -> float:
    return 1 - side.load.total_allowed / side.load.total_queries
