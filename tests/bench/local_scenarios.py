# SPDX-License-Identifier: MIT
"""Scenarios without Redis: the agent's memory store against a server that only echoes."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

import procfs
from decision import check_decision
from load import Load, alternate, merged, middle_ratio
from scenario import Figure, Options, Result, column, say_round
from servers import Server, Stage

_LIMIT = '[limits.bench]\nrate = "1000000/s"\nburst = 1000000'
_SLICES = 8
_SLICE_WARMUP = 0.05


def local_depth128(options: Options) -> Result:
    rounds = _rounds_against_echo(options, 128)
    return Result(
        [
            Figure("agent's CPU per query / echo's", column(rounds, "cpu_ratio"), at_most=2.0),
            Figure("agent's rate / echo's", column(rounds, "rate_ratio"), at_least=0.55),
            Figure("agent's CPU per query, us", column(rounds, "agent_cpu_us"), digits=3),
        ],
        rounds,
    )


def local_depth128_each(options: Options) -> Result:
    rounds = _rounds_against_echo(options, 128, "--write-each")
    return Result(
        [
            Figure("agent's CPU per query / echo's", column(rounds, "cpu_ratio")),
            Figure("agent's rate / echo's", column(rounds, "rate_ratio")),
            Figure("agent's CPU per query, us", column(rounds, "agent_cpu_us"), digits=3),
        ],
        rounds,
    )


def local_one_at_a_time(options: Options) -> Result:
    rounds = _rounds_against_echo(options, 1)
    return Result([Figure("agent's p50 / echo's", column(rounds, "p50_ratio"), at_most=1.10)], rounds)


def _rounds_against_echo(options: Options, depth: int, *more: str) -> list[dict[str, Any]]:
    rounds = []
    with Stage(options.bin_directory) as stage:
        echo, agent = stage.start_echo(), stage.start_agent(_LIMIT)
        check_decision(stage.load(agent, "--count", "1", "--first-reply").first_reply, "local")
        for number in range(1, options.rounds + 1):
            figures = round_against_echo(
                stage, echo, agent, options.seconds, "--depth", str(depth), "--keys", "1000", *more
            )
            rounds.append(figures)
            say_round(
                number,
                *(
                    f"{name} {figures[name]['rate']:,.0f}/s, p50 {figures[name]['p50_us']:.1f}, "
                    f"p99 {figures[name]['p99_us']:.1f}, CPU {figures[f'{name}_cpu_us']:.3f} us"
                    for name in ("echo", "agent")
                ),
            )
    return rounds


def round_against_echo(stage: Stage, echo: Server, agent: Server, seconds: float, *load: str) -> dict[str, Any]:
    """One round of slices in turn; `load` is what loadgen is to ask of both."""
    options = [*load, *f"--seconds {seconds / _SLICES} --warmup {_SLICE_WARMUP}".split()]
    before = {server: procfs.cpu_seconds(server.pid) for server in (echo, agent)}
    echo_loads, agent_loads = alternate(
        _SLICES, partial(stage.load, echo, *options), partial(stage.load, agent, *options)
    )

    def cpu_us(server: Server, load: Load) -> float:  # a server works in its own slices only
        return (procfs.cpu_seconds(server.pid) - before[server]) / load.total_queries * 1e6

    echo_load, agent_load = merged(echo_loads), merged(agent_loads)
    echo_cpu, agent_cpu = cpu_us(echo, echo_load), cpu_us(agent, agent_load)
    return {
        "echo": asdict(echo_load),
        "agent": asdict(agent_load),
        "echo_cpu_us": echo_cpu,
        "agent_cpu_us": agent_cpu,
        "cpu_ratio": agent_cpu / echo_cpu,
        "rate_ratio": middle_ratio(agent_loads, echo_loads, "rate"),
        "p50_ratio": middle_ratio(agent_loads, echo_loads, "p50_us"),
    }
