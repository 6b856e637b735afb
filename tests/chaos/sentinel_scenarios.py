# SPDX-License-Identifier: MIT
"""A Sentinel trio, whose master hands over or dies."""

from __future__ import annotations

import time
from collections.abc import Callable

from counted import LIMITS, QUESTIONS, charged
from failover import Failover, judge
from redis_sentinel import MASTER, SentinelTrio
from scenario import BACK_SECONDS, Figures, Scene, moments, scenario
from verdict import demand, granted


@scenario
def sentinel_told(scene: Scene) -> Figures:
    """A Sentinel is told to fail over: the old master lives on, and answers until it is demoted."""
    return _sentinel_failover(scene, lambda trio: trio.sentinels[0].call("SENTINEL", "FAILOVER", MASTER))


@scenario
def sentinel_killed(scene: Scene) -> Figures:
    """The master of a Sentinel trio is killed."""
    return _sentinel_failover(scene, lambda trio: trio.master.kill())


def _sentinel_failover(scene: Scene, end: Callable[[SentinelTrio], object]) -> Figures:
    trio = SentinelTrio(scene.directory / "sentinel")
    scene.own(trio.close)
    agent = scene.agent(trio.config(), LIMITS)
    scene.let_come_back(agent, limit="counted")
    new_master = trio.other(trio.master)
    with scene.traffic([agent], QUESTIONS) as traffic:
        time.sleep(1.0)
        began_at = moments()
        end(trio)
        trio.wait_until_master(new_master)
        failover = Failover(began_at, moments())
        time.sleep(BACK_SECONDS)
        known = sum(charged([new_master]).values())
        since = moments()
        time.sleep(max(scene.seconds - BACK_SECONDS, 1.0))
        report = traffic.finish()
    scene.wait_until_settled(agent)
    # By then it has left the old one.
    grants = sum(sample.asked_at > since for sample in granted(report.of("counted")))
    learnt = sum(charged([new_master]).values()) - known
    demand(grants > 0, "the store answers")
    demand(learnt >= grants, f"of {grants} grants {BACK_SECONDS:g} s after it was up the new master knows {learnt}")
    judged = judge(report, [agent], failover, [new_master])
    return f"{judged}; new master up after {(failover.new_master_at - began_at) / 1e9:.1f} s"
