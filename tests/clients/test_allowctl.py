# SPDX-License-Identifier: MIT
"""allowctl against the real agent: what it prints, and the exit codes that scripts rely on."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

BIN = Path(os.environ["ALLOWD_BIN_DIR"])


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    socket = tmp_path / "allowd.sock"
    config = tmp_path / "allowd.toml"
    config.write_text(f'[agent]\nsocket = "{socket}"\n[limits.api]\nrate = "2/h"\n[limits.bench]\nrate = "1000000/s"\n')
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([BIN / "allowd", "--config", config], stderr=log)
    try:
        for _ in range(200):
            if allowctl(socket, "ping").returncode == 0:
                break
            time.sleep(0.05)
        yield socket
    finally:
        process.terminate()
        assert process.wait(10) == 0, (tmp_path / "log").read_text()


def allowctl(socket: Path | str, *arguments: str, timeout: str = "5") -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "allowctl"), "--socket", str(socket), "--timeout", timeout, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_ping_answers_pong(agent: Path) -> None:
    result = allowctl(agent, "ping")
    assert (result.returncode, result.stdout) == (0, "pong\n")


def test_allow_exits_0_until_the_limit_and_1_beyond(agent: Path) -> None:
    codes = [allowctl(agent, "allow", "api", "k").returncode for _ in range(4)]
    assert codes == [0, 0, 1, 1]
    denied = allowctl(agent, "allow", "api", "k")
    assert denied.stdout.startswith("denied   limited, 0 of 2 left, retry in 29 min")


def test_a_limit_can_be_defined_on_the_command_line(agent: Path) -> None:
    decisions = [
        json.loads(allowctl(agent, "allow", "login", "u", "--rate", "1/day", "--burst", "2", "--json").stdout)
        for _ in range(3)
    ]
    assert [decision["allowed"] for decision in decisions] == [True, True, False]
    assert decisions[0]["limit"] == 2 and decisions[0]["window_us"] == 2 * 86_400_000_000
    assert decisions[2]["verdict"] == "limited"


def test_peek_charges_nothing_and_cost_counts(agent: Path) -> None:
    for _ in range(3):
        assert allowctl(agent, "peek", "api", "p").returncode == 0
    assert allowctl(agent, "allow", "api", "p", "--cost", "2").returncode == 0
    assert allowctl(agent, "peek", "api", "p").returncode == 1
    assert "never" in allowctl(agent, "peek", "api", "p", "--cost", "3").stdout


def test_usage_errors_exit_2(agent: Path) -> None:
    assert allowctl(agent, "allow", "api").returncode == 2
    assert allowctl(agent, "no-such-command").returncode == 2
    assert allowctl(agent, "allow", "api", "k", "--cost", "-1").returncode == 2


def test_no_agent_exits_3(tmp_path: Path) -> None:
    result = allowctl(tmp_path / "nobody.sock", "ping")
    assert result.returncode == 3
    assert "No such file" in result.stderr


def test_an_agent_that_does_not_answer_exits_4(agent: Path, tmp_path: Path) -> None:
    import socket as sockets

    silent = tmp_path / "silent.sock"
    with sockets.socket(sockets.AF_UNIX) as listener:
        listener.bind(str(silent))
        listener.listen()
        assert allowctl(silent, "allow", "api", "k", timeout="0.2").returncode == 4


def test_errors_of_the_agent_exit_5(agent: Path) -> None:
    result = allowctl(agent, "allow", "nope", "k")
    assert result.returncode == 5
    assert result.stderr == 'allowctl: unknown_limit: no limit is named "nope"\n'


def test_reports_come_as_text_and_json(agent: Path) -> None:
    allowctl(agent, "allow", "api", "k")
    assert json.loads(allowctl(agent, "info", "--json").stdout)["store"] == "memory"
    assert "store: memory\n" in allowctl(agent, "info").stdout
    stats = json.loads(allowctl(agent, "stats", "--json").stdout)
    assert stats["decisions"]["api"] == {"ok/local": 1}
    assert 'allowd_decisions_total{limit="api",tier="",verdict="ok",source="local"} 1' in allowctl(
        agent, "stats", "prom"
    ).stdout


def test_admin_commands_show_limits_and_keys(agent: Path) -> None:
    assert '"api" "" token_bucket 2/h 2 1h no global allow 20ms 0 0\n' in allowctl(agent, "limits").stdout
    allowctl(agent, "allow", "api", 'a "key"')
    answer = allowctl(agent, "key", "api", 'a "key"').stdout
    assert 'key: "a \\"key\\""\n' in answer and "remaining: 1\n" in answer
    assert allowctl(agent, "key", "nope", "k").returncode == 5


def test_bench_counts_what_it_asked(agent: Path) -> None:
    result = allowctl(agent, "bench", "-c", "3", "-d", "4", "-k", "10", "-n", "1000", "--json")
    report = json.loads(result.stdout)
    assert result.returncode == 0
    assert report["queries"] == 1000 and report["allowed"] == 1000 and report["sources"] == {"local": 1000}
    limited = json.loads(allowctl(agent, "bench", "--rate", "5/day", "--limit", "x", "-n", "100", "--json").stdout)
    assert (limited["allowed"], limited["denied"]) == (5, 95)


def test_help_teaches_with_examples() -> None:
    result = subprocess.run([str(BIN / "allowctl"), "--help"], capture_output=True, text=True)
    assert result.returncode == 0
    assert "allowctl allow login user-1 --rate 3/min" in result.stdout
