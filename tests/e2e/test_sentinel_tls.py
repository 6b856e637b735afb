# SPDX-License-Identifier: MIT
"""Sentinels and servers that speak nothing but TLS, among themselves as well, with a password each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from certificates import Authority, TlsFiles
from daemon import ASK_ALWAYS, Agent, Rack
from processes import wait_until
from redis_sentinel import MASTER, SentinelTrio

LIMITS = """
[limits.strict]
rate = "1000/h"
on_failure = "deny"
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def trio(rack: Rack, authority: Authority) -> Iterator[SentinelTrio]:
    tls = TlsFiles(authority.cert, authority.issue())
    made = SentinelTrio(rack.directory / "trio", server_password="of-servers", password="of-sentinels", tls=tls)
    yield made
    made.close()


def start(rack: Rack, trio: SentinelTrio, ca_file: Path) -> Agent:
    lines = ['password = "of-servers"', f'[redis.tls]\nca_file = "{ca_file}"']
    config = trio.config(*lines, sentinel='password = "of-sentinels"')
    return rack.start(LIMITS, agent='deadline = "200ms"', redis=config + ASK_ALWAYS)


def is_answered(agent: Agent) -> bool:
    return agent.allow("strict", "probe").source == "store"


def test_a_failover_is_followed_over_tls(rack: Rack, trio: SentinelTrio, authority: Authority) -> None:
    agent = start(rack, trio, authority.cert)
    agent.wait_for_redis()
    assert is_answered(agent)
    former, latter = trio.master, trio.other(trio.master)
    trio.sentinels[0].call("SENTINEL", "FAILOVER", MASTER)
    trio.wait_until_master(latter)
    former.kill()  # so that nobody else can answer
    wait_until(lambda: is_answered(agent), "the new master answers")
    assert "of-servers" not in agent.log() and "of-sentinels" not in agent.log()

    stranger = start(rack, trio, Authority(rack.directory, "stranger").cert)
    wait_until(lambda: "certificate verify failed" in stranger.log(), "the Sentinels are not believed")
    assert stranger.allow("strict", "probe").verdict == "unavailable"
