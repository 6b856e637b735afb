# SPDX-License-Identifier: MIT
"""Real Sentinels: the agent follows every failover, and each query meanwhile gets its one answer in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from daemon import ASK_ALWAYS, Agent, Rack
from fake_redis import FakeSentinel
from load import Load, Result
from processes import wait_until
from redis_sentinel import MASTER, SentinelTrio
from redis_server import RedisServer

DEADLINE = 0.2  # seconds
LIMITS = """
[limits.strict]
rate = "1000000/h"
on_failure = "deny"
"""
AGENT = f'deadline = "{int(DEADLINE * 1000)}ms"'
KEYS = [f"k{number}" for number in range(8)]

MakeTrio = Callable[..., SentinelTrio]


@pytest.fixture
def make_trio(rack: Rack) -> Iterator[MakeTrio]:
    with ExitStack() as cleanup:

        def make(**passwords: str) -> SentinelTrio:
            trio = SentinelTrio(rack.directory / "trio", **passwords)
            cleanup.callback(trio.close)
            return trio

        yield make


def start(rack: Rack, config: str) -> Agent:
    agent = rack.start(LIMITS, agent=AGENT, redis=config + ASK_ALWAYS)
    agent.wait_for_redis()
    return agent


def fail_over_under_load(agent: Agent, trio: SentinelTrio, begin: Callable[[], None]) -> tuple[Result, float]:
    """Also returns when the new master was up."""
    successor = trio.other(trio.master)
    with Load(agent, "strict", KEYS, connections=3) as load:
        time.sleep(0.5)
        begin()
        up_at = trio.wait_until_master(successor)
        wait_until(lambda: answered_by(agent, successor), "the store answers again", 10)
        time.sleep(2.5)
        return load.finish(), up_at


def answered_by(agent: Agent, server: RedisServer) -> bool:
    return agent.allow("strict", "probe").source == "store" and bool(server.keys())


def check(result: Result, up_at: float) -> None:
    result.check_times(DEADLINE)
    sources = result.sources_since(up_at + 2.0)
    assert sources["store"] > 20, sources
    assert sources["fallback"] == 0, f"2 s after the new master was up the store answers all: {sources}"


def test_the_master_is_found_and_a_failover_followed_under_load(rack: Rack, make_trio: MakeTrio) -> None:
    trio = make_trio()
    agent = start(rack, trio.config())
    assert agent.admin("shards").splitlines()[1].startswith(f"redis sentinel://{MASTER} up ")

    def fail_over() -> None:
        trio.sentinels[0].call("SENTINEL", "FAILOVER", MASTER)

    check(*fail_over_under_load(agent, trio, fail_over))
    assert agent.metric("redis_look_ups_failed_total") == 0


def test_a_master_that_is_killed_under_load_is_replaced(rack: Rack, make_trio: MakeTrio) -> None:
    trio = make_trio()
    agent = start(rack, trio.config())
    check(*fail_over_under_load(agent, trio, trio.master.kill))


def test_a_demotion_under_our_feet_that_keeps_connections_is_recovered_from(rack: Rack, make_trio: MakeTrio) -> None:
    trio = make_trio()
    agent = start(rack, trio.config())
    former = trio.master
    latter = trio.other(former)
    # By hand, and so that no client is cut off: READONLY is all that the agent gets to see.
    latter.call("REPLICAOF", "NO", "ONE")
    former.call("REPLICAOF", "127.0.0.1", latter.port)
    wait_until(lambda: agent.allow("strict", "k").source == "fallback", "it has noticed")
    assert agent.metric("redis_wrong_server_total") >= 1
    # The Sentinels put right whom they took for the master, one way or the other.
    wait_until(lambda: agent.allow("strict", "k").source == "store", "the store answers again", 40)


def test_sentinels_and_servers_with_passwords_of_their_own(rack: Rack, make_trio: MakeTrio) -> None:
    trio = make_trio(server_password="of-servers", password="of-sentinels")
    file = rack.new_path(".password")
    file.write_text("of-servers\n")
    agent = start(rack, trio.config(f'password_file = "{file}"', sentinel='password = "of-sentinels"'))
    assert agent.allow("strict", "k").source == "store"
    assert "of-servers" not in agent.log()
    assert "of-sentinels" not in agent.log()
    stranger = rack.start(LIMITS, agent=AGENT, redis=trio.config('password = "of-servers"'))
    wait_until(lambda: "NOAUTH" in stranger.log(), "the sentinels refuse who has no password")
    assert stranger.allow("strict", "k").verdict == "unavailable"


def test_a_dead_sentinel_is_passed_over_within_one_attempt(rack: Rack, make_trio: MakeTrio) -> None:
    trio = make_trio()
    trio.sentinels[0].kill()
    agent = start(rack, trio.config())
    assert agent.metric("redis_connection_attempts_total") == 1
    assert agent.allow("strict", "k").source == "store"


def test_a_group_that_no_sentinel_knows_is_an_outage_with_a_reason(rack: Rack, make_trio: MakeTrio) -> None:
    trio = make_trio()
    agent = rack.start(LIMITS, agent=AGENT, redis=trio.config().replace(f'"{MASTER}"', '"mian"'))
    wait_until(lambda: 'it does not know "mian"' in agent.log(), "it is logged")
    assert agent.allow("strict", "k").verdict == "unavailable"


def test_what_a_sentinel_takes_for_a_master_must_say_so_itself(
    rack: Rack, make_redis: Callable[..., RedisServer]
) -> None:
    master = make_redis()
    master.start()
    replica = make_redis("--replicaof", "127.0.0.1", str(master.port))
    replica.start()
    with FakeSentinel(replica.port) as sentinel:
        agent = rack.start(LIMITS, agent=AGENT, redis=sentinel.config + ASK_ALWAYS)
        wait_until(lambda: "it is not a master" in agent.log(), "it is logged")
        assert agent.allow("strict", "k").source == "fallback"
        sentinel.named = master.port
        wait_until(lambda: agent.allow("strict", "k").source == "store", "the store answers")
        agent.stop()
