# SPDX-License-Identifier: MIT
"""Many agents of one Redis: they come back apart, and share a budget though their clocks disagree."""

from __future__ import annotations

import re
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

from daemon import Agent
from processes import wait_until
from scenario import Figures, Scene, attempts_allowed, moments, redis_table, scenario
from traffic import Question
from verdict import Bucket, check_answers, check_exact, demand, fleet, granted

_AGENTS = 64
_DEFAULT_RECONNECT_MAX = 2.0  # seconds
_FAKETIME = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))


@scenario
def reconnect_herd(scene: Scene) -> Figures:
    """64 agents lose their Redis and find it again: they do not come back as one."""
    redis = scene.redis()
    between = scene.proxy(redis.port)
    table = redis_table(between.url, reconnect_max=_DEFAULT_RECONNECT_MAX)
    limits = '[limits.api]\nrate = "1/s"'
    agents = [scene.agent(table, limits, agent="max_keys = 1024", wait=False) for _ in range(_AGENTS)]
    wait_until(lambda: len(between.accepted()) == _AGENTS, "all agents are connected", 60)
    scene.wait_until_up(*agents)
    between.set_mood("refuse")
    lost_at = moments()
    # Longer than the waits take to grow to their bound.
    outage = max(scene.seconds, 2 * _DEFAULT_RECONNECT_MAX)
    time.sleep(outage)
    between.set_mood("pass")
    back_at = moments()
    scene.wait_until_up(*agents)
    accepted = between.accepted()[_AGENTS:]
    refused = sum(entry.mood == "refuse" for entry in accepted)
    demand(refused <= attempts_allowed(outage, _AGENTS), f"{refused} attempts to connect in {outage:g} s")
    came = sorted((entry.at - back_at) / 1e9 for entry in accepted if entry.mood == "pass")
    demand(len(came) == _AGENTS, f"{len(came)} connections of {_AGENTS} agents")
    tenths = Counter(int(seconds / _DEFAULT_RECONNECT_MAX * 10) for seconds in came)
    fullest = max(tenths.values())
    # With a wait chosen evenly up to the bound a fifth of them comes in the first tenth, and less in any other.
    demand(fullest <= 0.4 * _AGENTS, f"{fullest} of {_AGENTS} came within {_DEFAULT_RECONNECT_MAX / 10:g} s: {came}")
    middle = came[_AGENTS * 9 // 10] - came[_AGENTS // 10]
    demand(middle >= 0.3 * _DEFAULT_RECONNECT_MAX, f"four fifths came within {middle:.2f} s: {came}")
    demand(came[-1] <= _DEFAULT_RECONNECT_MAX + 0.5, f"the last came after {came[-1]:.2f} s")
    rate = refused / outage / _AGENTS
    first = sum(entry.at - lost_at < 1e8 for entry in accepted)
    return (
        f"{_AGENTS} agents came after {came[0]:.2f} to {came[-1]:.2f} s, four fifths of them within {middle:.2f} s, "
        f"at most {fullest} in {_DEFAULT_RECONNECT_MAX / 10:g} s; "
        f"in {outage:g} s without Redis {rate:.1f} attempts/s each, {first} at once"
    )


@scenario
def skewed_clocks(scene: Scene) -> Figures:
    """Two agents whose hosts' clocks are an hour apart share one budget exactly."""
    demand(bool(_FAKETIME), "libfaketime is not there: install the package faketime")
    limit, deadline = Bucket(burst=100, rate=50), 0.05
    limits = f'[limits.api]\nrate = "{limit.rate}/s"\nburst = {limit.burst}\non_failure = "deny"\ndeadline = "50ms"'
    redis = scene.redis()
    shift = scene.dice.choice([-3600, 3600])
    fake = {"LD_PRELOAD": str(_FAKETIME[0]), "FAKETIME": f"{shift:+d}s"}
    agents = [scene.agent(redis_table(redis.url), limits, environment=other) for other in ({}, fake)]
    apart = _logged_at(agents[1]) - _logged_at(agents[0])
    demand(abs(apart - shift) < 60, f"the clocks are {apart:.0f} s apart, and were to be {shift} s")
    scene.wait_until_up(*agents)
    keys = [f"k{number}" for number in range(4)]
    with scene.traffic(agents, [Question("api", keys, deadline)]) as traffic:
        begin = moments()
        time.sleep(scene.seconds)
        report = traffic.finish()
        seconds = (moments() - begin) / 1e9
    times = check_answers(report)
    beyond = check_exact(report, report.samples, limit, fleet(report, agents))
    grants = granted(report.samples)
    share = len(grants) / len(keys) / (limit.burst + limit.rate * seconds)
    demand(share > 0.8, f"only {share:.0%} of the budget was given out")
    by_agent = Counter(sample.agent for sample in grants)
    smallest = min(by_agent[0], by_agent[1]) / len(grants)
    demand(smallest > 0.1, f"one of the agents had {smallest:.0%} of the budget")
    return (
        f"{times}; clocks {apart:+.0f} s apart, {share:.1%} of the budget given out, {smallest:.0%} and "
        f"{1 - smallest:.0%} of it, never more than {beyond:+.2f} permits beyond it"
    )


def _logged_at(agent: Agent) -> float:
    """By the agent's clock."""
    found = re.search(r"^(\S+) info allowd", agent.log(), re.MULTILINE)
    demand(found is not None, agent.log())
    assert found is not None
    return datetime.fromisoformat(found[1]).timestamp()
