# SPDX-License-Identifier: MIT
"""Redis asked with and without an agent in between: what one side's runs cost Redis, and what they cost the agent."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import procfs
from decision import check_decision
from load import Load, merged
from servers import BenchError, Server, Stage

_CONNECT_SECONDS = 5.0
_MOST_FALLBACKS = 0.001  # of the replies looked at; more would flatter the agent


@dataclass(frozen=True)
class Slice:
    """One run of one side, and what Redis and the agent spent on it, warm-up included."""

    load: Load
    redis_cpu_seconds: float
    agent_cpu_seconds: float
    scripts: int


@dataclass(frozen=True)
class Side:
    """One side's slices of a round together; CPU and scripts per decision."""

    load: Load
    redis_cpu_us: float
    agent_cpu_us: float
    scripts: float


def wait_for_store(stage: Stage, agent: Server, limit: str = "bench") -> None:
    """The agent listens before its link to Redis stands; wait until Redis decides."""
    give_up = time.monotonic() + _CONNECT_SECONDS
    while True:
        reply = stage.load(agent, "--limit", limit, "--count", "1", "--keys", "1", "--first-reply").first_reply
        try:
            return check_decision(reply, "store")
        except BenchError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)


class Counted(Protocol):
    """A Redis, or several, as far as it is measured."""

    def cpu_seconds(self) -> float: ...
    def script_calls(self) -> int: ...


def measured(redis: Counted, agent: Server, run: Callable[[], Load]) -> Slice:
    redis_cpu, agent_cpu, scripts = redis.cpu_seconds(), procfs.cpu_seconds(agent.pid), redis.script_calls()
    load = run()
    return Slice(
        load,
        redis_cpu_seconds=redis.cpu_seconds() - redis_cpu,
        agent_cpu_seconds=procfs.cpu_seconds(agent.pid) - agent_cpu,
        scripts=redis.script_calls() - scripts,
    )


def together(slices: Sequence[Slice]) -> Side:
    load = merged([part.load for part in slices])
    return Side(
        load,
        redis_cpu_us=sum(part.redis_cpu_seconds for part in slices) / load.total_queries * 1e6,
        agent_cpu_us=sum(part.agent_cpu_seconds for part in slices) / load.total_queries * 1e6,
        scripts=sum(part.scripts for part in slices) / load.total_queries,
    )


def check_sources(load: Load) -> None:
    """Refuses a run that the policy for failures answered, not Redis."""
    if load.fallback_samples > _MOST_FALLBACKS * load.samples:
        raise BenchError(f"{load.fallback_samples} of {load.samples} replies looked at were answered without Redis")
