# SPDX-License-Identifier: MIT
"""A Cluster, whose slots move and whose masters die."""

from __future__ import annotations

import time

from counted import COUNTED_KEYS, LIMITS, QUESTIONS
from failover import Failover, judge
from processes import wait_until
from redis_cluster import RedisCluster, role
from scenario import BACK_SECONDS, Figures, Scene, moments, scenario
from verdict import demand, first_answer_of_store, share_of_store

_PATIENCE = 30.0  # seconds, for the servers to agree on a new master


@scenario
def cluster_failover(scene: Scene) -> Figures:
    """Of a Cluster of three masters and their replicas, slots move and a master dies."""
    directory = scene.directory / "cluster"
    directory.mkdir()
    cluster = RedisCluster(directory, 3, 3, "--cluster-require-full-coverage", "no")
    scene.own(cluster.close)
    cluster.start()
    agent = scene.agent(cluster.config(), LIMITS)
    scene.let_come_back(agent, limit="counted")
    with agent.connect() as client:
        for key in COUNTED_KEYS:
            client.allow("counted", key, 1, deadline_us=5_000_000)
    dead = scene.dice.choice(cluster.masters)
    replica = cluster.replicas[cluster.masters.index(dead)]
    with scene.traffic([agent], QUESTIONS, [server for server in cluster.masters if server is not dead]) as traffic:
        time.sleep(0.5)
        moved = _move_slots(scene, cluster)
        moved_at = moments()
        time.sleep(0.3)
        owners = {key.rsplit(b":", 1)[1].decode(): server for key, server in cluster.keys().items()}
        killed_at = moments()
        dead.kill()
        wait_until(lambda: role(replica) == "master", "the replica is a master", _PATIENCE)
        failover = Failover(killed_at, moments())
        scene.let_come_back(agent, limit="counted")
        time.sleep(max(scene.seconds - (moments() - killed_at) / 1e9, 1.0))
        report = traffic.finish()
    scene.wait_until_settled(agent)
    before = [s for s in report.of("counted") if s.asked_at < killed_at - 1e8 and s.seen_at < killed_at]
    smooth = share_of_store(report, before)
    demand(smooth >= 0.999, f"while slots moved {smooth:.2%} of the answers were the store's")
    others = [s for s in report.of("counted") if s.asked_at > killed_at and owners.get(s.key, dead) is not dead]
    share = share_of_store(report, others)
    demand(share >= 0.99, f"the other masters' keys had {share:.2%} answers of the store")
    own = [s for s in report.samples if owners.get(s.key) is dead]
    back = first_answer_of_store(own, failover.new_master_at)
    demand(back < BACK_SECONDS, f"the new master was asked {back:.2f} s after it was up")
    judged = judge(report, [agent], failover, [*cluster.masters, *cluster.replicas])
    took = (failover.new_master_at - killed_at) / 1e9
    return (
        f"{judged}; {moved} slots moved in {(moved_at - before[0].asked_at) / 1e9:.1f} s with {smooth:.2%} from the "
        f"store, failover in {took:.1f} s with {share:.2%} for others' keys, back after {back:.2f} s"
    )


def _move_slots(scene: Scene, cluster: RedisCluster) -> int:
    """Some that have keys, each to another master."""
    slots = sorted({cluster.slot(key) for key in cluster.keys()})
    chosen = scene.dice.sample(slots, min(len(slots), 12))
    for slot in chosen:
        source = cluster.owners()[slot]
        target = scene.dice.choice([server for server in cluster.masters if server is not source])
        cluster.move(slot, source, target)
    return len(chosen)
