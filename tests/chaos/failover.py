# SPDX-License-Identifier: MIT
"""What is asked of a master that is replaced, in whatever way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from counted import TIGHT, charged
from daemon import Agent
from redis_server import RedisServer
from scenario import BACK_SECONDS
from traffic import Report
from verdict import check_answers, check_exact, demand, first_answer_of_store, fleet, granted

# What a master granted so short a time before its end may not have reached its replica; and a master that is replaced
# while it lives goes on granting until it is told.
_LOSS_SECONDS = 2.0


class Failover(NamedTuple):
    began_at: int
    new_master_at: int  # since when it has said that it is one


def _loss(report: Report, failover: Failover, charges: dict[str, int]) -> int:
    """How many grants the masters do not know. All were given while a master was replaced, or shortly before."""
    known = dict(charges)
    lost = 0
    for sample in sorted(granted(report.of("counted")), key=lambda one: one.seen_at, reverse=True):
        if known.get(sample.key, 0) > 0:
            known[sample.key] -= 1
        else:
            lost += 1
    begin, end = failover.began_at - _LOSS_SECONDS * 1e9, failover.new_master_at + _LOSS_SECONDS * 1e9
    doubtful = sum(begin <= sample.seen_at <= end for sample in granted(report.of("counted")))
    demand(lost <= doubtful, f"{lost} grants are not in Redis, and only {doubtful} were given around the failover")
    return lost


def judge(report: Report, agents: Sequence[Agent], failover: Failover, servers: Sequence[RedisServer]) -> str:
    """`servers`: all that may be masters afterwards."""
    times = check_answers(report)
    back = first_answer_of_store(report.samples, failover.new_master_at)
    demand(back < BACK_SECONDS, f"the store answered {back:.2f} s after the new master was up")
    lost = _loss(report, failover, charged(servers))
    # A failover may lose all that a key had used.
    stated = TIGHT.burst + TIGHT.rate * _LOSS_SECONDS
    beyond = check_exact(report, report.of("tight"), TIGHT, fleet(report, agents), stated_loss=stated)
    return f"{times}; back after {back:.2f} s, {lost} grants lost by Redis, {beyond:+.2f} permits beyond the limit"
