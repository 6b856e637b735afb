# SPDX-License-Identifier: MIT
"""A proxy between agent and Redis that misbehaves in every way that it knows."""

from __future__ import annotations

import time
from collections.abc import Sequence

from certificates import Authority
from counted import LIMITS, QUESTIONS, TIGHT, check_counted
from fault_proxy import MOODS, Proxy
from ports import free_port
from redis_server import RedisServer
from scenario import BACK_SECONDS, RECONNECT_MAX, Figures, Scene, attempts_allowed, moments, redis_table, scenario
from verdict import check_answers, check_exact, demand, first_answer_of_store, fleet


@scenario
def proxy(scene: Scene) -> Figures:
    """What stands between agent and Redis misbehaves in every way, in random order."""
    redis = scene.redis()
    between = scene.proxy(redis.port)
    return _through(scene, redis, between, redis_table(between.url))


@scenario
def proxy_tls(scene: Scene) -> Figures:
    """The same with TLS, of which the proxy understands nothing."""
    authority = Authority(scene.directory)
    certificate = authority.issue()
    port = free_port()
    files = ["--tls-cert-file", certificate.cert, "--tls-key-file", certificate.key]
    more = ["--tls-ca-cert-file", authority.cert, "--tls-auth-clients", "no"]
    redis = scene.redis("--tls-port", str(port), *map(str, files), *map(str, more))
    between = scene.proxy(port)
    table = redis_table(between.url.replace("redis://", "rediss://"))
    return _through(scene, redis, between, f'{table}\n\n[redis.tls]\nca_file = "{authority.cert}"')


def _through(scene: Scene, redis: RedisServer, between: Proxy, table: str) -> Figures:
    agent = scene.agent(table, LIMITS)
    scene.wait_until_up(agent)
    moods: list[str] = []
    met = 0
    with scene.traffic([agent], QUESTIONS) as traffic:
        begin = moments()
        while moods or met < len(MOODS) or moments() < begin + scene.seconds * 1e9:
            if not moods:
                moods = scene.dice.sample(sorted(MOODS), len(MOODS))
            # Some meet a connection that works, some the attempts to get one.
            if scene.dice.random() < 0.5:
                between.set_mood("pass")
                time.sleep(2 * RECONNECT_MAX)
            between.set_mood(moods.pop())
            met += 1
            time.sleep(scene.dice.uniform(0.15, 0.5))
        faults_end = moments()
        between.set_mood("pass")
        scene.let_come_back(agent, limit="counted")
        report = traffic.finish()
    times = check_answers(report)
    back = first_answer_of_store(report.samples, faults_end)
    demand(back < BACK_SECONDS, f"the store answered again after {back:.2f} s")
    attempts = [accepted.at for accepted in between.accepted()]
    _check_attempts(attempts)
    # The agent listens for half a minute to a connection that owes it answers, which this proxy has thrown away.
    between.reset_all()
    scene.wait_until_up(agent)
    scene.wait_until_settled(agent)
    lost = check_counted(report, [redis])
    told = fleet(report, [agent])
    beyond = check_exact(report, report.of("tight"), TIGHT, told)
    return (
        f"{times}; {met} moods, {len(attempts)} connections, {told.given_back} given back, {lost} charged to nobody, "
        f"never more than {beyond:+.2f} permits beyond the limit, back after {back:.2f} s"
    )


def _check_attempts(attempts: Sequence[int]) -> None:
    """In every interval, as a server sees them: no more than are allowed."""
    for place, begin in enumerate(attempts):
        for count, end in enumerate(attempts[place:], start=1):
            seconds = (end - begin) / 1e9
            demand(count <= attempts_allowed(seconds), f"{count} connections within {seconds:.2f} s")
