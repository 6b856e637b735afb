# SPDX-License-Identifier: MIT
"""Servers that stop, die, and come back with and without what they knew."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence

from counted import LIMITS, QUESTIONS, TIGHT, check_counted
from daemon import Agent
from redis_server import RedisServer
from scenario import BACK_SECONDS, Figures, Scene, attempts_allowed, moments, redis_table, scenario
from traffic import Report, Sample
from verdict import check_answers, check_exact, demand, first_answer_of_store, fleet, share_of_store

_ROOM_BYTES = 8 << 20  # by which the agent may grow: what it knows of keys, and what queues up meanwhile
_STOPPED_SECONDS = 5.0  # at least: long enough for connections to be given up, and attempts to be counted


@scenario
def stopped_shard(scene: Scene) -> Figures:
    """One of three shards is stopped for a while: the others' keys do not notice."""
    names = ["a", "b", "c"]
    servers = {name: scene.redis() for name in names}
    agent = scene.agent(redis_table(**{name: server.url for name, server in servers.items()}), LIMITS)
    scene.wait_until_up(agent)
    owners = _owners(agent, servers)
    stopped = scene.dice.choice(names)
    seconds = max(scene.seconds, _STOPPED_SECONDS)
    others = [server for name, server in servers.items() if name != stopped]
    with scene.traffic([agent], QUESTIONS, others) as traffic:
        time.sleep(1.0)
        before = agent.metric("redis_connection_attempts_total")
        memory = largest = agent.resident_bytes()
        stopped_at = moments()
        servers[stopped].pause()
        while moments() < stopped_at + seconds * 1e9:
            time.sleep(0.1)
            largest = max(largest, agent.resident_bytes())
        attempts = agent.metric("redis_connection_attempts_total") - before
        servers[stopped].resume()
        resumed_at = moments()
        scene.let_come_back(agent, limit="counted")
        report = traffic.finish()
    times = check_answers(report)
    scene.wait_until_settled(agent)

    meanwhile = [s for s in report.samples if stopped_at < s.asked_at and s.seen_at < resumed_at]
    of_others = (s for s in meanwhile if owners[s.key] != stopped and s.verdict != "limited")
    share = share_of_store(report, of_others)
    demand(share >= 0.999, f"the other shards' keys had {share:.2%} answers of the store")
    own = [s for s in report.samples if owners[s.key] == stopped]
    back = first_answer_of_store(own, resumed_at)
    demand(back < BACK_SECONDS, f"the store answered again after {back:.2f} s")
    grown = largest - memory
    demand(grown < _ROOM_BYTES, f"the agent grew by {grown >> 10} KiB")
    demand(attempts <= attempts_allowed(seconds), f"{attempts:.0f} attempts to connect in {seconds:g} s")
    check_counted(report, list(servers.values()))
    check_exact(report, report.of("tight"), TIGHT, fleet(report, [agent]))
    return (
        f"{times}; others' keys {share:.2%} from the store, {attempts / seconds:.1f} attempts/s, "
        f"RSS +{grown >> 10} KiB, back after {back:.2f} s"
    )


def _owners(agent: Agent, servers: dict[str, RedisServer]) -> dict[str, str]:
    """Of each key the server that keeps it."""
    with agent.connect() as client:
        for question in QUESTIONS:
            for key in question.keys:
                client.allow(question.limit, key, 1, deadline_us=5_000_000)
    return {key.rsplit(b":", 1)[1].decode(): name for name, server in servers.items() for key in server.keys()}


_ENDS = ["killed", "emptied", "demoted"]


@scenario
def restarts(scene: Scene) -> Figures:
    """Redis is killed and comes back, with its data or without, or is a replica for a while; again and again."""
    redis = scene.redis("--appendonly", "yes", "--appendfsync", "everysec")
    agent = scene.agent(redis_table(redis.url), LIMITS)
    scene.wait_until_up(agent)
    losses: list[int] = []
    returns: list[int] = []
    kinds: list[str] = []
    with scene.traffic([agent], QUESTIONS) as traffic:
        begin = moments()
        while kinds or not returns or moments() < begin + scene.seconds * 1e9:
            if not kinds:
                kinds = scene.dice.sample(_ENDS, len(_ENDS))
            time.sleep(scene.dice.uniform(0.3, 0.8))
            how = kinds.pop()
            if how == "demoted":
                redis.call("REPLICAOF", "127.0.0.1", 1)  # nobody is there, so that it keeps its data
            else:
                redis.kill()
            if how == "emptied":
                losses.append(moments())
                shutil.rmtree(redis.directory / "appendonlydir")
            time.sleep(scene.dice.uniform(0.1, 0.8))
            if how == "demoted":
                redis.call("REPLICAOF", "NO", "ONE")
            else:
                redis.start()
            returns.append(moments())
        scene.let_come_back(agent, limit="counted")
        report = traffic.finish()
    times = check_answers(report)
    scene.wait_until_settled(agent)
    back = max(first_answer_of_store(report.samples, returned) for returned in returns)
    demand(back < BACK_SECONDS, f"the store answered again after {back:.2f} s")
    told = fleet(report, [agent])
    for part in _between(report.of("tight"), losses):
        check_exact(report, part, TIGHT, told)
    last = Report(report.questions, [s for s in report.samples if not losses or s.asked_at > losses[-1]])
    lost = check_counted(last, [redis])
    return (
        f"{times}; {len(returns)} times gone, {len(losses)} of them with its data lost, "
        f"back after at most {back:.2f} s, {lost} charged to nobody"
    )


def _between(samples: Sequence[Sample], losses: Sequence[int]) -> list[list[Sample]]:
    """By the losses between them: each time a limit begins anew, and what was granted before is forgotten."""
    edges = [0, *losses, 1 << 62]
    return [
        [sample for sample in samples if begin < sample.asked_at <= end]
        for begin, end in zip(edges, edges[1:], strict=False)
    ]
