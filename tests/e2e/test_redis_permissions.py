# SPDX-License-Identifier: MIT
"""OPERATING.md's rules for users, taken from there: an agent that may do no more than they say can do all it must."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from daemon import ASK_ALWAYS, Agent, Rack
from processes import wait_until
from redis_cluster import RedisCluster
from redis_sentinel import SentinelTrio
from redis_server import RedisServer, version

OPERATING = Path(__file__).resolve().parents[2] / "agent/OPERATING.md"
LIMITS = """
[limits.bucket]
rate = "10/h"
refund = true
on_failure = "deny"
deadline = "5s"

# A charge leaves the second in which it will be full again as it was.
[limits.fast]
rate = "1000000/s"
on_failure = "deny"
deadline = "5s"

[limits.tiers]
tiers = [ { name = "s", rate = "5/s" }, { name = "d", rate = "10/day", algorithm = "fixed_window" } ]
refund = true
on_failure = "deny"
deadline = "5s"

[limits.log]
rate = "10/h"
algorithm = "sliding_log"
on_failure = "deny"
deadline = "5s"

[limits.counter]
rate = "10/h"
algorithm = "counter"
on_failure = "deny"
deadline = "5s"
"""


def rules_for(user: str) -> list[list[str]]:
    """The words of each ACL SETUSER of that user: of "limiter" for one server, what Sentinels add, for a Cluster."""
    lines = re.findall(rf"^    ACL SETUSER {user} (.+)$", OPERATING.read_text(), re.MULTILINE)
    assert lines
    return [line.replace("PASSWORD", "pw").split() for line in lines]


def denials(server: RedisServer) -> list[str]:
    """What the server would not let somebody do, since it started."""
    log = (dict(zip(entry[::2], entry[1::2], strict=True)) for entry in server.call("ACL", "LOG"))
    return [f"{entry[b'reason'].decode()} {entry[b'object'].decode()}" for entry in log]


def idle_rules(rules: list[str], *servers: RedisServer) -> set[str]:
    """The commands that nobody has called."""
    allowed = {rule[1:] for rule in rules if rule.startswith("+")}
    if version() < (7,):  # which counts commands as a whole, and needs no transactions
        allowed = {command.partition("|")[0] for command in allowed} - {"multi", "exec", "client"}
    stats = "".join(server.call("INFO", "commandstats").decode() for server in servers)
    # For servers without HELLO alone.
    return allowed - set(re.findall(r"^cmdstat_([^:]+):", stats, re.MULTILINE)) - {"auth", "client|setname"}


def use_everything(agent: Agent) -> None:
    agent.wait_for_redis()
    for limit in ("bucket", "fast", "tiers", "log", "counter"):
        for _ in range(12):
            assert agent.allow(limit, "k").source == "store", limit
        assert agent.peek(limit, "k").source == "store", limit
    for limit in ("bucket", "tiers"):
        assert agent.ask("refund", limit, "k", 1)[6] == "store", limit
        assert agent.allow(limit, "k", force=True).source == "store", limit
    items = [["bucket", "m1", 1], ["bucket", "m2", 1]]
    assert [decision[6] for decision in agent.ask("allow_many", items, "all")] == ["store", "store"]
    assert agent.admin("reset bucket k") == "reset\n"
    assert agent.metric("redis_errors_total") == 0
    assert "lacks" not in agent.log()
    wait_until(lambda: agent.metric("agents_known") == 1, "it has counted itself")
    assert agent.metric("redis_connection_attempts_total") == agent.metric("redis_shards")


def test_a_user_with_the_documented_rules_can_do_all_that_an_agent_does(rack: Rack, redis: RedisServer) -> None:
    redis.call("ACL", "SETUSER", "limiter", *rules_for("limiter")[0])
    agent = rack.start(LIMITS, redis=f'url = "redis://limiter:pw@127.0.0.1:{redis.port}/1"' + ASK_ALWAYS)
    use_everything(agent)
    how = "multi" if version() >= (7,) else "script"
    assert [shard["counter"] for shard in agent.shards().values()] == [how]
    # Values of an odd kind and keys without a TTL are put right under it as well.
    with redis.client() as client:
        client.call("SELECT", 1)
        keys = client.call("KEYS", "*bucket*")
        for key in keys:
            client.call("PERSIST", key)
    for _ in range(12):
        agent.allow("bucket", "k")
        agent.allow("bucket", "m1", 3)
    assert agent.metric("redis_errors_total") == 0
    agent.stop()  # takes itself off the set of agents
    assert denials(redis) == []
    assert idle_rules(rules_for("limiter")[0], redis) == set()


@pytest.mark.parametrize("word", ["+evalsha", "+script|load", "+time", "+mget", "+setex", "~allowd:*"])
def test_none_of_the_rules_for_a_bucket_is_idle(rack: Rack, redis: RedisServer, word: str) -> None:
    redis.call("ACL", "SETUSER", "limiter", *[rule for rule in rules_for("limiter")[0] if rule != word])
    agent = rack.start(LIMITS, redis=f'url = "redis://limiter:pw@127.0.0.1:{redis.port}"' + ASK_ALWAYS)

    def is_named() -> bool:
        agent.allow("bucket", "k")
        return (word if version() >= (7,) else word.partition("|")[0]).lstrip("+~") in agent.log()

    wait_until(is_named, f"the log names {word}")
    assert agent.allow("bucket", "k").verdict == "unavailable"


def test_users_with_the_documented_rules_suffice_behind_sentinels(rack: Rack) -> None:
    trio = SentinelTrio(rack.directory / "trio")
    try:
        for server in trio.servers:
            for rules in rules_for("limiter")[:2]:
                server.call("ACL", "SETUSER", "limiter", *rules)
        for sentinel in trio.sentinels:
            sentinel.call("ACL", "SETUSER", "watcher", *rules_for("watcher")[0])
            sentinel.call("ACL", "SETUSER", "default", "off")
        config = trio.config('user = "limiter"', 'password = "pw"', sentinel='user = "watcher", password = "pw"')
        use_everything(rack.start(LIMITS, redis=config + ASK_ALWAYS))
        assert [denials(server) for server in trio.servers] == [[], []]
    finally:
        trio.close()


def start_in(cluster: RedisCluster, rack: Rack) -> Agent:
    seeds = ", ".join(f'"redis://limiter:pw@127.0.0.1:{server.port}"' for server in cluster.masters)
    return rack.start(LIMITS, redis=f'cluster = [ {seeds} ]' + ASK_ALWAYS)


def test_a_user_with_the_documented_rules_can_do_all_that_an_agent_does_in_a_cluster(rack: Rack) -> None:
    rules = rules_for("limiter")[2]
    cluster = RedisCluster(rack.directory, 3, 0, "--user", "limiter", *rules)
    try:
        cluster.start()
        agent = start_in(cluster, rack)
        use_everything(agent)
        assert "script" in agent.admin("shards")
        # A key that has left before its slot is asked for with ASKING; then the map is asked for anew.
        agent.allow("bucket", "moves")
        key = next(key for key in cluster.keys() if key.endswith(b":moves"))
        slot, source = cluster.slot(key), cluster.owner(key)
        target = next(server for server in cluster.masters if server is not source)
        cluster.begin_move(slot, source, target)
        cluster.move_keys([key], source, target)
        assert (agent.allow("bucket", "moves").remaining, agent.metric("redis_redirections_total")) == (8, 1)
        assert agent.admin("reset bucket moves") == "reset\n"
        cluster.end_move(slot, source, target)
        refreshes = agent.metric("redis_cluster_map_refreshes_total")
        assert agent.allow("bucket", "moves")[:3:2] == (True, 9)
        wait_until(lambda: agent.metric("redis_cluster_map_refreshes_total") > refreshes, "the map is asked for anew")
        assert "bucket" in agent.admin("key bucket moves")
        assert agent.metric("redis_cluster_map_failures_total") == 0
        agent.stop()
        assert [denials(server) for server in cluster.masters] == [[], [], []]
        assert idle_rules(rules, *cluster.masters) == set()

        for server in cluster.masters:
            server.call("ACL", "SETUSER", "limiter", "-asking")
        agent = start_in(cluster, rack)
        agent.wait_for_redis()
        cluster.begin_move(slot, target, source)
        cluster.move_keys([key], target, source)
        assert agent.allow("bucket", "moves").verdict == "unavailable"
        assert agent.log().count("its user lacks +asking") == 1
        cluster.end_move(slot, target, source)
        for server in cluster.masters:
            server.call("ACL", "SETUSER", "limiter", "-cluster")
        agent = start_in(cluster, rack)
        wait_until(lambda: "run the 'cluster" in agent.log(), "the log names it")
    finally:
        cluster.close()
