# SPDX-License-Identifier: MIT
"""An outage under load with on_failure = "local": several agents, each on its own for that long, and what they admit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from daemon import Agent, Rack
from load import Load, Result
from processes import wait_until
from redis_server import RedisServer

RATE = 10  # permits a second
BURST = 40
AGENTS = 4
DEADLINE = 0.15  # seconds
DRAINED, FULL = "drained", "full"  # keys: what was left of them when Redis went


def limits(share: int | None) -> str:
    """`share`: between how many agents, by hand."""
    lines = [f'rate = "{RATE}/s"', f"burst = {BURST}", 'on_failure = "local"']
    if share is not None:
        lines.append(f"local_share = {share}")
    return "[limits.api]\n" + "\n".join(lines)


@dataclass
class Outage:
    """What came of it."""

    seconds: float  # from before Redis went until after it was back
    whole: float  # until the load ended
    left: dict[str, int]  # before it went
    during: dict[str, int]  # admitted until it was back
    admitted: dict[str, int]  # and until the load ended
    results: list[Result]

    def check(self, spare: float = 0.0) -> None:
        """`spare`: permits that questions of before the outage may have taken and given back while others paid."""
        for result in self.results:
            result.check_times(DEADLINE)
        for key in (DRAINED, FULL):
            # A permit an agent, and one for each end of the time that was measured.
            most = self.left[key] + RATE * self.seconds + AGENTS + 2
            assert self.during[key] <= most, f"{key}: {self}"
            assert self.during[key] >= RATE * self.seconds / 2, f"{key}: the shares were of use: {self}"
            most = self.left[key] + RATE * self.whole + AGENTS + 2 + spare
            assert self.admitted[key] <= most, f"{key}: nobody had a second full bucket: {self}"

    def __str__(self) -> str:
        return f"{self.seconds:.1f} of {self.whole:.1f} s, left {self.left}, {self.during}, {self.admitted}"


def start(rack: Rack, redis: RedisServer, share: int | None) -> list[Agent]:
    agents = [
        rack.start(limits(share), agent=f'deadline = "{int(DEADLINE * 1000)}ms"', redis=redis.config())
        for _ in range(AGENTS)
    ]
    for agent in agents:
        wait_until(lambda agent=agent: agent.allow("api", "first").source == "store", "it has found its Redis")
    if share is None:
        wait_until(lambda: all(agent.metric("agents_known") == AGENTS for agent in agents), "they know", within=40)
    return agents


def run(
    agents: list[Agent], seconds: float, begin: Callable[[], None], end: Callable[[], None], after: float = 4.5
) -> Outage:
    """Redis goes with `begin`, and comes back with `end` that much later. The load goes on until keys are held no longer."""
    with agents[0].connect() as client:
        client.allow("api", DRAINED, BURST)
    # Each has heard of both keys.
    for agent in agents:
        agent.allow("api", DRAINED, 2)
        agent.peek("api", FULL)
    left = {DRAINED: agents[0].peek("api", DRAINED).remaining, FULL: BURST}
    began = time.monotonic()
    begin()
    loads = [Load(agent, "api", [DRAINED, FULL], 2) for agent in agents]
    for load in loads:
        load.__enter__()
    try:
        time.sleep(seconds)
    finally:
        end()
        back = time.monotonic()
        time.sleep(after)
        results = [load.finish() for load in loads]
    ended = time.monotonic()
    samples = [sample for result in results for sample in result.samples if sample.decision.allowed]
    return Outage(
        back - began,
        ended - began,
        left,
        {key: sum(s.key == key and s.asked_at < back for s in samples) for key in left},
        {key: sum(s.key == key for s in samples) for key in left},
        results,
    )
