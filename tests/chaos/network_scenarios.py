# SPDX-License-Identifier: MIT
"""A wire that is cut, and a name server that never answers."""

from __future__ import annotations

import time

from daemon import Agent
from network import CUTS, Wire
from processes import wait_until
from scenario import BACK_SECONDS, Figures, Scene, attempts_allowed, moments, redis_table, scenario
from traffic import Question
from verdict import GRACE_NS, check_answers, demand, first_answer_of_store, share_of_store, starved

_DEADLINE = 0.05  # seconds
_LIMITS = f"""
[limits.api]
rate = "1000000/s"
on_failure = "deny"
deadline = "{_DEADLINE * 1000:.0f}ms"

[limits.host]
rate = "1000000/s"
scope = "host"
"""
_KEYS = [f"k{number}" for number in range(100)]
_ASK = Question("api", _KEYS, _DEADLINE)
_ASK_HERE = Question("host", _KEYS, 0.001)  # which needs nobody, so that its deadline is ours


@scenario
def cut_link(scene: Scene) -> Figures:
    """The wire to Redis is cut in every way, in random order, and mended."""
    wire = Wire(scene.directory)
    scene.own(wire.close)
    redis = scene.redis("--bind", wire.far_address, "--protected-mode", "no", within=wire.far)
    agent = scene.agent(redis_table(f"redis://{wire.far_address}:{redis.port}"), _LIMITS, within=wire.near)
    scene.wait_until_up(agent)
    cuts = scene.dice.sample(sorted(CUTS), len(CUTS))
    backs = []
    with scene.traffic([agent], [_ASK]) as traffic:
        time.sleep(0.5)
        before, begin = agent.metric("redis_connection_attempts_total"), moments()
        for how in cuts:
            wire.cut(how)
            # Some of them shorter than it takes to notice.
            time.sleep(scene.dice.uniform(0.3, 2 * scene.seconds / len(cuts)))
            wire.mend()
            backs.append(moments())
            scene.let_come_back(agent, limit="api")
        seconds = (moments() - begin) / 1e9
        attempts = agent.metric("redis_connection_attempts_total") - before
        report = traffic.finish()
    times = check_answers(report)
    scene.wait_until_settled(agent)
    unavailable = sum(sample.source == "fallback" for sample in report.samples)
    demand(unavailable > 0, "nobody noticed that the wire was cut")
    slowest = max(first_answer_of_store(report.samples, back) for back in backs)
    demand(slowest < BACK_SECONDS, f"the store answered again after {slowest:.2f} s")
    demand(attempts <= attempts_allowed(seconds), f"{attempts:.0f} attempts to connect in {seconds:.1f} s")
    return (
        f"{times}; cut {', '.join(cuts)}, {unavailable} answered by the policy, {attempts:.0f} attempts, "
        f"back after at most {slowest:.2f} s"
    )


@scenario
def silent_resolver(scene: Scene) -> Figures:
    """One shard has a name that the name server never answers for: nobody else notices."""
    wire = Wire(scene.directory)
    scene.own(wire.close)
    wire.cut("silent")
    redis = scene.redis(within=wire.near)
    named = f"redis://redis.example:{redis.port}"
    table = redis_table(named=named, numbered=redis.url)
    agent = scene.agent(table, _LIMITS, within=wire.with_resolver(wire.far_address, scene.directory))
    numbered = _keys_of_the_numbered(agent)
    with scene.traffic([agent], [_ASK, _ASK_HERE], [redis]) as traffic:
        time.sleep(scene.seconds)
        attempts = agent.metric("redis_connection_attempts_total")
        report = traffic.finish()
    times = check_answers(report)
    demand(agent.metric("redis_up") == 1, "the shard without a name is up, the other is not")
    share = share_of_store(report, (sample for sample in report.of("api") if sample.key in numbered))
    demand(share >= 0.999, f"the other shard's keys had {share:.2%} answers of the store")
    demand(len(numbered) < len(_KEYS), "the other shard has keys as well")
    here = report.of("host")
    demand(all(sample.source == "local" for sample in here), "a host's own limits are decided there")
    waits = sorted(max(sample.not_before - sample.sent_at - starved(report, sample), 0) for sample in here)
    demand(waits[-1] < GRACE_NS, f"a host's own decision took {waits[-1] / 1e6:.1f} ms")
    begin = time.monotonic()
    agent.stop()
    stopped = time.monotonic() - begin
    demand(stopped < BACK_SECONDS, f"the agent took {stopped:.1f} s to end")
    return (
        f"{times}; {len(here)} decided here within {waits[-1] / 1e6:.1f} ms, others' keys {share:.2%} from the store, "
        f"{attempts:.0f} attempts, ended within {stopped:.2f} s"
    )


def _keys_of_the_numbered(agent: Agent) -> set[str]:
    """Those for which the store answers."""
    wait_until(lambda: agent.metric("redis_up") == 1, "the shard that needs no name is up")
    with agent.connect() as client:
        return {key for key in _KEYS if client.allow("api", key).source == "store"}
