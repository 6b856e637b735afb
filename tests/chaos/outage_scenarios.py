# SPDX-License-Identifier: MIT
"""Agents that enforce their shares alone while there is no Redis."""

from __future__ import annotations

import time

from processes import wait_until
from scenario import BACK_SECONDS, Figures, Scene, moments, redis_table, scenario
from traffic import Question
from verdict import Bucket, check_answers, check_exact, demand, first_answer_of_store, fleet

_AGENTS = 4
_DEADLINE = 0.05  # seconds
_LIMIT = Bucket(burst=40, rate=20)
_KEYS = [f"k{number}" for number in range(4)]


@scenario
def outage_local(scene: Scene) -> Figures:
    """Four agents with on_failure = "local" lose their Redis, which keeps its data, and find it again."""
    # A long run waits until the agents have counted themselves, a short one tells them.
    learns = scene.seconds >= 30
    share = "" if learns else f"local_share = {_AGENTS}\n"
    limits = f"""
[limits.api]
rate = "{_LIMIT.rate}/s"
burst = {_LIMIT.burst}
on_failure = "local"
deadline = "{_DEADLINE * 1000:.0f}ms"
{share}"""
    redis = scene.redis("--appendonly", "yes", "--appendfsync", "no")
    agents = [scene.agent(redis_table(redis.url), limits) for _ in range(_AGENTS)]
    scene.wait_until_up(*agents)
    if learns:
        wait_until(lambda: all(a.metric("agents_known") == _AGENTS for a in agents), "they know how many they are", 60)
    is_killed = scene.dice.random() < 0.5
    with scene.traffic(agents, [Question("api", _KEYS, _DEADLINE)]) as traffic:
        time.sleep(1.5)
        lost_at = moments()
        if is_killed:
            redis.kill()
        else:
            redis.pause()
        time.sleep(scene.seconds)
        if is_killed:
            redis.start()
        else:
            redis.resume()
        back_at = moments()
        scene.let_come_back(*agents, limit="api")
        time.sleep(1.0)
        report = traffic.finish()
    times = check_answers(report)
    scene.wait_until_settled(*agents)
    back = first_answer_of_store(report.samples, back_at)
    demand(back < BACK_SECONDS, f"the store answered again after {back:.2f} s")
    # From the policy's beginning on, which may be a deadline or a second after the loss.
    meanwhile = [s for s in report.samples if s.asked_at > lost_at + 1.5e9 and s.seen_at < back_at]
    demand(all(s.source == "fallback" for s in meanwhile), "nobody had the store's answer while Redis was gone")
    demand(all(s.verdict in ("ok", "limited") for s in meanwhile), "each agent knew its share")
    seconds = (back_at - lost_at) / 1e9 - 1.5
    used = sum(s.allowed for s in meanwhile) / len(_KEYS) / (_LIMIT.rate * seconds)
    demand(used > 0.5, f"the agents alone gave out only {used:.0%} of the rate")
    # Redis's answers and the agents' own together, over the whole time: nobody has a second full bucket afterwards.
    counted = [s._replace(source="store") if s.source == "fallback" and s.allowed else s for s in report.samples]
    told = fleet(report, agents)
    beyond = check_exact(report, counted, _LIMIT, told, stated_loss=_AGENTS)
    way = "killed" if is_killed else "stopped"
    return (
        f"{times}; Redis {way} for {scene.seconds:g} s, {used:.0%} of the rate given out meanwhile, never more than "
        f"{beyond:+.2f} permits beyond the limit, back after {back:.2f} s"
    )
