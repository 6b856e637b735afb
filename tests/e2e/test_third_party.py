# SPDX-License-Identifier: MIT
"""MessagePack-RPC clients that know nothing of allowd: pynvim's session, and Neovim itself."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pynvim.msgpack_rpc import ErrorResponse, socket_session

import processes
from daemon import Agent, Rack
from processes import wait_until

LIMITS = '[limits.api]\nrate = "10/h"\n'
HOUR = 3_600_000_000  # µs


@pytest.fixture(scope="module")
def agent(shared_rack: Rack) -> Agent:
    return shared_rack.start(LIMITS)


# pynvim


class PynvimSession:
    """pynvim's session; it introduces itself with a notification when it starts."""

    def __init__(self, path: Path) -> None:
        self._session: Any = socket_session(str(path))
        self._session.error_wrapper = ErrorResponse

    def request(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._session.request(method, *arguments, **options)

    def close(self) -> None:
        """pynvim leaves its socket to the garbage collector, which complains of that."""
        self._session.close()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            self._session = None
            gc.collect()


@pytest.fixture
def session(agent: Agent) -> Iterator[PynvimSession]:
    connected = PynvimSession(agent.path)
    yield connected
    connected.close()


def test_pynvim_gets_decisions(session: PynvimSession) -> None:
    first = session.request("allow", "api", "pynvim", 4)
    assert first == [True, 10, 6, 0, 4 * HOUR // 10, "ok", "local", "", HOUR, HOUR // 10]
    refused = session.request("allow", "api", "pynvim", 7)
    assert refused[0] is False
    assert refused[5] == "limited"
    assert session.request("peek", "api", "pynvim")[2] == 6


def test_pynvim_can_bring_its_own_limit(session: PynvimSession) -> None:
    limit = {"name": "pynvim", "rate": "2/h"}
    answers = [session.request("allow", limit, "k", 1, {"deadline_us": 50_000})[0] for _ in range(3)]
    assert answers == [True, True, False]


def test_pynvim_sees_errors_and_goes_on(session: PynvimSession) -> None:
    for method, arguments, code in (
        ("allow", ["nobody", "k"], "unknown_limit"),
        ("allow", ["api"], "bad_request"),
        ("nvim_get_api_info", [], "unknown_method"),
    ):
        with pytest.raises(ErrorResponse, match=f"^{code}: "):
            session.request(method, *arguments)
    assert session.request("ping") == "pong"


def test_pynvim_reads_maps(session: PynvimSession) -> None:
    assert session.request("info")["limits"]["api"]["tiers"] == [["", 10, HOUR, "token_bucket"]]
    assert session.request("stats")["connections"] >= 1


def test_pynvims_notifications_are_ignored(agent: Agent, session: PynvimSession) -> None:
    before = agent.metric("notifications_total")
    session.request("allow", "api", "notified", 10, async_=True)
    assert session.request("peek", "api", "notified")[2] == 10
    wait_until(lambda: agent.metric("notifications_total") > before, "it is counted")


def test_pynvim_can_send_many(session: PynvimSession) -> None:
    answers = [session.request("allow", "api", f"many{number % 50}")[0] for number in range(1000)]
    assert sum(answers) == 500


# Neovim

SCRIPT = """
let channel = sockconnect('pipe', $AGENT_SOCKET, {'rpc': v:true})
let answers = {}
let answers.first = rpcrequest(channel, 'allow', 'api', 'nvim', 4)
let answers.refused = rpcrequest(channel, 'allow', 'api', 'nvim', 7)
let answers.default_cost = rpcrequest(channel, 'allow', 'api', 'nvim')
let answers.own = rpcrequest(channel, 'allow', {'name': 'nvim', 'rate': '5/h'}, 'k', 2, {'deadline_us': 50000})
let answers.ping = rpcrequest(channel, 'ping')
let answers.info = rpcrequest(channel, 'info')
try
  call rpcrequest(channel, 'allow', 'nobody', 'k')
catch
  let answers.error = v:exception
endtry
call rpcnotify(channel, 'allow', 'api', 'nvim', 5)
let answers.after = rpcrequest(channel, 'peek', 'api', 'nvim')
let answers.many = []
for number in range(200)
  call add(answers.many, rpcrequest(channel, 'allow', 'api', 'nvim' . number)[0])
endfor
call writefile([json_encode(answers)], $ANSWERS)
qall!
"""


def run_nvim(directory: Path, agent: Agent) -> dict[str, Any]:
    """Runs SCRIPT in a Neovim without any configuration and returns what it wrote."""
    program = shutil.which("nvim")
    if program is None:
        pytest.skip("nvim is not installed")
    script, answers = directory / "ask.vim", directory / "answers.json"
    script.write_text(SCRIPT)
    where = {"AGENT_SOCKET": str(agent.path), "ANSWERS": str(answers)}
    own = {name: str(directory) for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")}
    done = subprocess.run(
        [program, "--headless", "-u", "NONE", "-i", "NONE", "-n", "-S", str(script)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env=processes.clean_environment({**where, **own}),
    )
    assert answers.exists(), done.stderr
    loaded: dict[str, Any] = json.loads(answers.read_text())
    return loaded


def test_neovim_gets_decisions_errors_and_maps(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    answers = run_nvim(rack.directory, agent)
    assert answers["first"] == [True, 10, 6, 0, 4 * HOUR // 10, "ok", "local", "", HOUR, HOUR // 10]
    assert (answers["refused"][0], answers["refused"][5]) == (False, "limited")
    assert answers["default_cost"][2] == 5
    assert answers["own"][:3] == [True, 5, 3]
    assert answers["ping"] == "pong"
    assert answers["info"]["store"] == "memory"
    assert "unknown_limit: " in answers["error"]
    assert answers["after"][2] == 5, "a notification charges nothing"
    assert answers["many"] == [True] * 200
    assert agent.metric("notifications_total") >= 1
    assert agent.metric("connections_violating_total") == 0
