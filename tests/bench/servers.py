# SPDX-License-Identifier: MIT
"""Starts the servers and generators of the benchmark and ends them again.

Ownership  A Stage owns every process it started and a temporary directory with their sockets, configs and logs.
           Leaving it ends exactly those processes, by pid, and removes the directory, whatever happened.
Errors     BenchError, with the end of the log of the program that failed.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import wire
from load import Load

sys.path.append(str(Path(__file__).resolve().parent.parent / "e2e"))
from ports import free_port as free_port  # noqa: E402

_START_SECONDS = 10.0
_STOP_SECONDS = 5.0


class BenchError(Exception):
    """The benchmark could not be run, or ran something else than it was meant to."""


@dataclass(frozen=True)
class Server:
    """A running server: who it is and where it listens."""

    pid: int
    path: Path


class Stage:
    """One scenario's processes. Use it as a context manager. `agent_under` is what agents are to run under: a command
    that becomes them, as valgrind does."""

    def __init__(self, bin_directory: Path, *, agent_under: Sequence[str] = ()) -> None:
        self._bin = bin_directory
        self._agent_under = agent_under
        self._cleanup = ExitStack()
        self._started = 0

    def __enter__(self) -> Stage:
        self._directory = Path(tempfile.mkdtemp(prefix="allowd-bench-"))
        self._cleanup.callback(shutil.rmtree, self._directory, ignore_errors=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()

    @property
    def directory(self) -> Path:
        return self._directory

    # Servers

    def start_echo(self) -> Server:
        path = self._directory / "echo.sock"
        process, log = self._start([self._program("echo_server"), str(path)])
        self._wait_until(lambda: _accepts(path), process, log)
        return Server(process.pid, path)

    def start_agent(
        self,
        limits: str,
        *,
        redis_port: int | None = None,
        shards: Sequence[int] = (),
        redis_lines: str = "",
        max_keys: int | None = None,
    ) -> Server:
        """Starts allowd with these `[limits...]` tables, on the memory store or on Redis: at a port, at several, or as
        the lines of its `[redis]` table say."""
        path = self._directory / f"agent{self._started}.sock"
        # The deadline is far off: an answer that a busy machine made late must not pass for a quick one.
        lines = ["[agent]", f'socket = "{path}"', 'deadline = "1s"']
        if max_keys is not None:
            lines.append(f"max_keys = {max_keys}")
        if redis_lines:
            lines += ["[redis]", redis_lines]
        if redis_port is not None:
            lines += ["[redis]", f'url = "redis://127.0.0.1:{redis_port}"']
        if shards:
            tables = (f'{{ name = "{n}", url = "redis://127.0.0.1:{port}" }}' for n, port in enumerate(shards))
            lines += ["[redis]", f"shards = [ {', '.join(tables)} ]"]
        config = path.with_suffix(".toml")
        config.write_text("\n".join([*lines, limits, ""]))
        process, log = self._start([*self._agent_under, self._program("allowd"), "--config", str(config)])
        self._wait_until(lambda: _pongs(path), process, log)
        return Server(process.pid, path)

    def start_redis(self, *more: str) -> int:
        """Starts a redis-server without persistence on a free loopback port, and returns the port."""
        program = shutil.which("redis-server")
        if program is None:
            raise BenchError("redis-server is not installed")
        port = free_port()
        options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(self._directory)]
        process, log = self._start([program, "--port", str(port), *options, *more])
        self._wait_until(lambda: _redis_answers(port), process, log)
        return port

    # Generators

    def load(self, server: Server, *options: str) -> Load:
        """Runs loadgen against the server to its end."""
        return self._load_of(self.start_load(server, *options))

    def nice_load(self, server: Server, *options: str) -> Load:
        """The same, but others go first wherever the processor is short."""
        return self._load_of(self._generator(["nice", "-n", "10", *self._loadgen(server), *options]))

    def start_load(self, server: Server, *options: str) -> subprocess.Popen[str]:
        """Starts loadgen beside others; finish_load() reads its figures at its end, stop_load() ends it before."""
        return self._generator([*self._loadgen(server), *options])

    def finish_load(self, process: subprocess.Popen[str]) -> Load:
        return self._load_of(process)

    def stop_load(self, process: subprocess.Popen[str]) -> Load:
        process.send_signal(signal.SIGTERM)
        return self._load_of(process)

    def redis_baseline(self, port: int, *options: str) -> Load:
        """Runs the one-call-per-request client against Redis to its end."""
        return self._load_of(self.start_redis_baseline(port, *options))

    def start_redis_baseline(self, port: int, *options: str) -> subprocess.Popen[str]:
        """Starts it beside others; finish_load() reads its figures at its end."""
        return self._generator([self._program("redis_baseline"), "--redis", f"127.0.0.1:{port}", *options])

    # How

    def _program(self, name: str) -> str:
        path = self._bin / name
        if not path.is_file():
            raise BenchError(f"{path} is not there: build it first, or name another directory with --bin")
        return str(path)

    def _loadgen(self, server: Server) -> list[str]:
        return [self._program("loadgen"), "--socket", str(server.path)]

    def _generator(self, command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
        )
        self._cleanup.callback(_end, process)
        return process

    def _load_of(self, process: subprocess.Popen[str]) -> Load:
        output, errors = process.communicate()
        if process.returncode != 0:
            raise BenchError(errors.strip() or f"a generator ended with code {process.returncode}")
        return Load.from_json(output)

    def _start(self, command: list[str]) -> tuple[subprocess.Popen[bytes], Path]:
        log = self._directory / f"{Path(command[0]).name}-{self._started}.log"
        self._started += 1
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        self._cleanup.callback(_end, process)
        return process, log

    @staticmethod
    def _wait_until(is_ready: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
        give_up = time.monotonic() + _START_SECONDS
        while not is_ready():
            if process.poll() is not None or time.monotonic() > give_up:
                raise BenchError(f"{log.stem} did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)


def _end(process: subprocess.Popen[Any]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _accepts(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _pongs(path: Path) -> bool:
    try:
        return bool(wire.ask_agent(path, "ping") == "pong")
    except OSError:
        return False


def _redis_answers(port: int) -> bool:
    try:
        with wire.RedisClient(port) as redis:
            return bool(redis.call("PING") == "PONG")
    except (OSError, wire.WireError):  # not listening yet, or still loading
        return False
