# SPDX-License-Identifier: MIT
"""Whom Redis refuses waits for a person, 30 to 60 s at a time, and then comes back by itself.

Minutes are short here; with ALLOWD_E2E_LONG=1 it is done once more at the usual pace.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

import pytest

from daemon import ASK_ALWAYS, Agent, Rack
from hurried_time import IS_LONG, hurried, seconds_of
from processes import wait_until
from redis_server import RedisServer

LIMITS = """
[limits.strict]
rate = "1000/h"
on_failure = "deny"
"""
LEAST = 30  # seconds, by the agent's clock
PATIENCE = 120  # a machine may be busy

MakeRedis = Callable[..., RedisServer]


class Refused(NamedTuple):
    """An agent that is, and what a person would do about it."""

    agent: Agent
    word: str  # in the log
    server: RedisServer
    repair: tuple[str, ...]  # of a user


def logged_at(agent: Agent, words: str) -> float:
    """When it said so first, by its own clock."""
    line = next(line for line in agent.log().splitlines() if words in line)
    return datetime.fromisoformat(line.split()[0]).timestamp()


@pytest.mark.parametrize("times", [20, 1] if IS_LONG else [20])
def test_who_is_refused_comes_back_by_himself(rack: Rack, make_redis: MakeRedis, times: int) -> None:
    redis, closed = make_redis(), make_redis(password="s3cr3t")
    for server in (redis, closed):
        server.start()
    for user, *rules in [("stranger", ">other"), ("hampered", ">pw", "-script"), ("reader", ">pw", "-set", "-setex")]:
        redis.call("ACL", "SETUSER", user, "on", "~*", "+@all", *rules)

    def start(server: RedisServer, credentials: str = "") -> Agent:
        url = f'url = "redis://{credentials}127.0.0.1:{server.port}"\nreconnect_max = "250ms"'
        return rack.start(LIMITS, agent='deadline = "20s"', redis=url + ASK_ALWAYS, environment=hurried(times))

    refused = [
        Refused(start(redis, "stranger:pw@"), "WRONGPASS", redis, ("stranger", ">pw")),
        Refused(start(redis, "hampered:pw@"), "NOPERM", redis, ("hampered", "+script")),
        Refused(start(closed), "NOAUTH", closed, ("default", "nopass")),
    ]
    for one in refused:
        wait_until(lambda one=one: f"{one.word} " in one.agent.log(), f"{one.word} is logged")
        assert "for a person to change" in one.agent.log()
    reader = start(redis, "reader:pw@")
    reader.wait_for_redis()
    wait_until(lambda: reader.allow("strict", "k").verdict == "unavailable", "scripts are refused")
    refused_at = seconds_of(reader)

    for one in refused:
        one.server.call("ACL", "SETUSER", *one.repair)
    redis.call("ACL", "SETUSER", "reader", "+set", "+setex")
    for one in refused:
        wait_until(lambda one=one: "connected" in one.agent.log(), f"{one.word} is over", PATIENCE)
        waited = logged_at(one.agent, "connected") - logged_at(one.agent, "for a person to change")
        print(f"{one.word}: {waited:.1f} s")
        assert LEAST <= waited <= PATIENCE
        assert one.agent.allow("strict", "k").source == "store"
    wait_until(lambda: reader.allow("strict", "k").source == "store", "its scripts are asked again", PATIENCE)
    waited = seconds_of(reader) - refused_at
    print(f"a script: {waited:.1f} s")
    assert waited <= PATIENCE
