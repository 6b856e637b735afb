# SPDX-License-Identifier: MIT
"""Starts the real allowd, and holds every one that was started to a clean end.

Ownership  A Rack owns its agents and their files. Closing it ends each agent and fails if one did not end as it
           should: exit code 0 on SIGTERM, and no report of a sanitizer, an assertion or a leaked handle in its log.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import processes
from rpc import AdminClient, Client, Decision

_REPOSITORY = Path(__file__).resolve().parents[2]
_BIN = Path(os.environ.get("ALLOWD_BIN_DIR") or _REPOSITORY / "build" / "dev" / "bin").resolve()

_START_SECONDS = 30.0
_STOP_SECONDS = 15.0
_BAD_SIGNS = re.compile(
    r"AddressSanitizer|LeakSanitizer|ThreadSanitizer|MemorySanitizer|runtime error:|Assertion|terminate called"
    r"|a handle was leaked|Segmentation fault"
)
_SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": f"halt_on_error=1:suppressions={Path(__file__).with_name('tsan.supp')}",
}


def program(name: str = "allowd") -> Path:
    path = _BIN / name
    assert path.is_file(), f"{path} is not there: build it, or name its directory in ALLOWD_BIN_DIR"
    return path


@cache
def is_sanitized() -> bool:
    """Whether the binary carries a sanitizer: it is slower then, and frees memory late."""
    binary = program().read_bytes()
    return b"__asan_init" in binary or b"__tsan_init" in binary


class Agent:
    """A running allowd."""

    def __init__(self, process: subprocess.Popen[bytes], path: Path, admin_path: Path, log: Path) -> None:
        self.process = process
        self.path = path
        self.admin_path = admin_path
        self._log = log
        self._was_killed = False
        self._was_told_to_stop = False

    # Asking, on a connection of its own each time

    def connect(self) -> Client:
        return Client(self.path)

    def ask(self, method: str, *params: Any) -> Any:
        with self.connect() as client:
            return client.ask(method, *params)

    def allow(self, limit: Any, key: str | bytes, cost: int | None = None, **options: Any) -> Decision:
        with self.connect() as client:
            return client.allow(limit, key, cost, **options)

    def peek(self, limit: Any, key: str | bytes, cost: int | None = None) -> Decision:
        with self.connect() as client:
            return client.peek(limit, key, cost)

    def answers(self) -> bool:
        try:
            return bool(self.ask("ping") == "pong")
        except OSError:
            return False

    def admin(self, line: str) -> str:
        with AdminClient(self.admin_path) as admin:
            return admin.ask(line)

    def shards(self) -> dict[str, dict[str, str]]:
        """What `shards` says, by name and column."""
        heading, *rows = map(shlex.split, self.admin("shards").splitlines())
        assert heading[:2] == ["#", "name"]
        return {row[0]: dict(zip(heading[1:], row, strict=True)) for row in rows}

    def metric(self, name: str) -> float:
        """A counter or gauge by its name in `stats`, which works also when no client gets a place."""
        lines = dict(line.rsplit(" ", 1) for line in self.admin("stats").splitlines())
        return float(lines[name])

    # Looking

    @property
    def pid(self) -> int:
        return self.process.pid

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def open_fds(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
        assert found, status
        return int(found[1]) * 1024

    # Ending

    def signal(self, number: signal.Signals) -> None:
        self._was_told_to_stop = self._was_told_to_stop or number in (signal.SIGTERM, signal.SIGINT)
        self.process.send_signal(number)

    def kill(self) -> None:
        """As a crash would end it."""
        self._was_killed = True
        processes.kill(self.process)

    def wait_for_redis(self) -> None:
        """Until all of its servers can be asked."""
        processes.wait_until(lambda: not self.ask("info")["degraded"], "it has found its Redis")

    def stop(self) -> None:
        """SIGTERM, and all that was promised about the end. Twice is fine."""
        if self.process.poll() is None and not self._was_told_to_stop:
            self.signal(signal.SIGTERM)
        self.wait()

    def wait(self) -> None:
        """Waits for an end that was asked for already, and checks that it is a clean one."""
        try:
            code = self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            processes.kill(self.process)
            raise AssertionError(f"allowd did not stop within {_STOP_SECONDS:g} s:\n{self.log()}") from None
        assert not _BAD_SIGNS.search(self.log()), self.log()
        assert self._was_killed or code == 0, f"allowd ended with code {code}:\n{self.log()}"


# Behind the lines of a [redis] table: every query asks Redis, whatever was known of its key.
ASK_ALWAYS = '\n\n[prefilter]\ntrust = "1us"'


class Rack:
    """Starts agents in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._agents: list[Agent] = []
        self._files = 0

    def new_path(self, ending: str) -> Path:
        self._files += 1
        return self.directory / f"{self._files}{ending}"

    def write_config(self, limits: str = "", *, path: Path | None = None, agent: str = "", redis: str = "") -> Path:
        """A config with a socket at `path`; `agent` and `redis` are the lines of those tables."""
        config = self.new_path(".toml")
        socket_line = f'socket = "{path}"\n' if path else ""
        tables = [f"[agent]\n{socket_line}{agent}"]
        if redis:
            tables.append(f"[redis]\n{redis}")
        config.write_text("\n\n".join([*tables, limits]) + "\n")
        return config

    def start(
        self,
        limits: str = "",
        *,
        agent: str = "",
        redis: str = "",
        path: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Agent:
        """Starts an agent and waits until it answers."""
        path = path or self.new_path(".sock")
        config = self.write_config(limits, path=path, agent=agent, redis=redis)
        return self.start_command(["--config", str(config)], path, environment)

    def start_command(
        self,
        arguments: list[str],
        path: Path,
        environment: Mapping[str, str] | None = None,
        *,
        within: Sequence[str] = (),
        wait: bool = True,
    ) -> Agent:
        """Starts an agent with these arguments, which are expected to make it listen at `path`; `within` is a
        command that becomes the one behind it."""
        log = self.new_path(".log")
        command = [*within, program(), *arguments]
        process = processes.start(command, log, {**_SANITIZER_OPTIONS, **(environment or {})})
        agent = Agent(process, path, path.with_suffix(".admin.sock"), log)
        self._agents.append(agent)
        if wait:
            self._wait_until_it_answers(agent)
        return agent

    def forget(self, agent: Agent) -> None:
        """Leaves an agent that has ended, with whatever code, to the caller."""
        assert agent.process.poll() is not None
        self._agents.remove(agent)

    def run(
        self, *arguments: str | Path, text: str = "", environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs allowd to its end, on which only the caller has an opinion, except that it must not be a crash."""
        done = subprocess.run(
            [str(program()), *map(str, arguments)],
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            env=processes.clean_environment({**_SANITIZER_OPTIONS, **(environment or {})}),
        )
        assert not _BAD_SIGNS.search(done.stderr), done.stderr
        assert done.returncode >= 0, f"ended by signal {-done.returncode}:\n{done.stderr}"
        return done

    def close(self) -> None:
        problems = []
        for agent in self._agents:
            try:
                agent.stop()
            except AssertionError as problem:
                problems.append(str(problem))
            print(f"--- log of allowd {agent.pid}\n{agent.log()}")  # pytest shows it when the test failed
        self._agents.clear()
        assert not problems, "\n\n".join(problems)

    def _wait_until_it_answers(self, agent: Agent) -> None:
        give_up = time.monotonic() + _START_SECONDS
        while not agent.answers():
            if agent.process.poll() is not None:
                self.forget(agent)
                raise AssertionError(f"allowd ended with code {agent.process.returncode}:\n{agent.log()}")
            assert time.monotonic() < give_up, f"allowd did not answer:\n{agent.log()}"
            time.sleep(0.02)
