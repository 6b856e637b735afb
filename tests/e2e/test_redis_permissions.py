# SPDX-License-Identifier: MIT
"""OPERATING.md's rules for users, taken from there: an agent that may do no more than they say can do all it must."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from daemon import ASK_ALWAYS, Agent, Rack
from processes import wait_until
from redis_sentinel import SentinelTrio
from redis_server import RedisServer

OPERATING = Path(__file__).resolve().parents[2] / "agent/OPERATING.md"
LIMITS = """
[limits.bucket]
rate = "10/h"
refund = true
on_failure = "deny"

[limits.tiers]
tiers = [ { name = "s", rate = "5/s" }, { name = "d", rate = "10/day", algorithm = "fixed_window" } ]
refund = true
on_failure = "deny"

[limits.log]
rate = "10/h"
algorithm = "sliding_log"
on_failure = "deny"

[limits.counter]
rate = "10/h"
algorithm = "counter"
on_failure = "deny"
"""


def rules_for(user: str) -> list[list[str]]:
    """The words of each ACL SETUSER of that user, in the document's order."""
    lines = re.findall(rf"^    ACL SETUSER {user} (.+)$", OPERATING.read_text(), re.MULTILINE)
    assert lines
    return [line.replace("PASSWORD", "pw").split() for line in lines]


def use_everything(agent: Agent) -> None:
    agent.wait_for_redis()
    for limit in ("bucket", "tiers", "log", "counter"):
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
    assert agent.metric("redis_connection_attempts_total") == 1


def test_a_user_with_the_documented_rules_can_do_all_that_an_agent_does(rack: Rack, redis: RedisServer) -> None:
    redis.call("ACL", "SETUSER", "limiter", *rules_for("limiter")[0])
    agent = rack.start(LIMITS, redis=f'url = "redis://limiter:pw@127.0.0.1:{redis.port}/1"' + ASK_ALWAYS)
    use_everything(agent)
    assert " multi\n" in agent.admin("shards") + "\n"
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


@pytest.mark.parametrize("word", ["+evalsha", "+script|load", "+time", "+mget", "+setex", "~allowd:*"])
def test_none_of_the_rules_for_a_bucket_is_idle(rack: Rack, redis: RedisServer, word: str) -> None:
    redis.call("ACL", "SETUSER", "limiter", *[rule for rule in rules_for("limiter")[0] if rule != word])
    agent = rack.start(LIMITS, redis=f'url = "redis://limiter:pw@127.0.0.1:{redis.port}"' + ASK_ALWAYS)

    def is_named() -> bool:
        agent.allow("bucket", "k")
        return word.lstrip("+~") in agent.log()

    wait_until(is_named, f"the log names {word}")
    assert agent.allow("bucket", "k").verdict == "unavailable"


def test_users_with_the_documented_rules_suffice_behind_sentinels(rack: Rack) -> None:
    trio = SentinelTrio(rack.directory / "trio")
    try:
        for server in trio.servers:
            for rules in rules_for("limiter"):
                server.call("ACL", "SETUSER", "limiter", *rules)
        for sentinel in trio.sentinels:
            sentinel.call("ACL", "SETUSER", "watcher", *rules_for("watcher")[0])
            sentinel.call("ACL", "SETUSER", "default", "off")
        config = trio.config('user = "limiter"', 'password = "pw"', sentinel='user = "watcher", password = "pw"')
        use_everything(rack.start(LIMITS, redis=config + ASK_ALWAYS))
    finally:
        trio.close()
