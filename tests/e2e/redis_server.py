# SPDX-License-Identifier: MIT
"""A real redis-server that can be paused, killed and started again at the same place.

ALLOWD_REDIS_SERVER names another program than the redis-server of the PATH. What that one lacks skips the test that
wants it; of the PATH's everything is expected.

Ownership  A RedisServer owns its process and its files. close() ends exactly that process.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

import processes
from certificates import TlsFiles
from ports import free_port
from resp import RedisClient, RedisError


_OTHER_PROGRAM = os.environ.get("ALLOWD_REDIS_SERVER", "")


@cache
def program() -> Path:
    """The server that is tested against."""
    name = _OTHER_PROGRAM or "redis-server"
    found = shutil.which(name)
    assert found, f"{name} is not installed"
    return Path(found).absolute()


@cache
def version() -> tuple[int, ...]:
    """Of that server, as (7, 0, 15)."""
    told = subprocess.run([program(), "--version"], capture_output=True, text=True, timeout=10).stdout
    found = re.search(r" v=(\d+(?:\.\d+)*)", told)
    assert found, told
    return tuple(int(part) for part in found[1].split("."))


def needs(*least: int) -> None:
    """What came with that version of Redis."""
    if version() < least:
        _do_without("what came with Redis " + ".".join(str(part) for part in least))


def needs_tls() -> None:
    if b"SSL_CTX_new" not in program().read_bytes():
        _do_without("TLS")


def _do_without(what: str) -> None:
    assert _OTHER_PROGRAM, f"{program()} lacks {what}"
    pytest.skip(f"{program()} lacks {what}")


_FORMAT = 1  # the number that a value begins with
_SIZES = (7, 7, 7, 5)  # bytes of each number behind it


class StoredBucket(NamedTuple):
    """The value of one key as this version writes it."""

    unit: int
    last: int
    used: int
    full_at: int = 0  # the second of the clock; an own one that is wrong costs a write of the TTL, nothing else

    def encoded(self) -> bytes:
        return bytes([_FORMAT]) + b"".join(
            number.to_bytes(size, "little") for number, size in zip(self, _SIZES, strict=True)
        )

    @classmethod
    def decoded(cls, value: bytes) -> StoredBucket:
        assert len(value) == 1 + sum(_SIZES) and value[0] == _FORMAT, value
        ends = list(itertools.accumulate(_SIZES, initial=1))
        return cls(*(int.from_bytes(value[start:end], "little") for start, end in itertools.pairwise(ends)))

    @property
    def permits_used(self) -> int:
        """Whole permits, rounded up: right while less than one has come back since."""
        return int(-(-self.used // self.unit))


# Names the keys without a TTL, a page of SCAN at a time; one that writes nothing may run whatever Redis refuses.
_KEYS_WITHOUT_TTL = """
local page, found = redis.call('SCAN', ARGV[1], 'COUNT', '1000'), {}
for _, key in ipairs(page[2]) do
  if redis.call('PTTL', key) == -1 then found[#found + 1] = key end
end
return {page[1], found}
"""


class RedisServer:
    """Not running until start(). `within` is a command that becomes the one behind it. With `tls` its port is for TLS
    alone; without a `port` it gets a free one."""

    running: ClassVar[set[RedisServer]] = set()

    def __init__(
        self,
        directory: Path,
        *options: str,
        password: str = "",
        within: Sequence[str] = (),
        tls: TlsFiles | None = None,
        port: int = 0,
    ) -> None:
        if tls or "--tls-port" in options:
            needs_tls()
        if "--user" in options:
            needs(6)
        directory.mkdir()
        self.port = port or free_port()
        self.unix_path = directory / "redis.sock"
        self._program = [*within, program()]
        self.directory = directory
        self._password = password
        self._tls = tls
        self._options = [*options, *(["--requirepass", password] if password else [])]
        self._process: subprocess.Popen[bytes] | None = None
        self._is_paused = False
        self._planted: set[bytes] = set()

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def url(self) -> str:
        credentials = f":{self._password}@" if self._password else ""
        return f"{'rediss' if self._tls else 'redis'}://{credentials}127.0.0.1:{self.port}"

    def config(self, *, prefix: str = "", reconnect_max: str = "250ms") -> str:
        """The lines of an agent's [redis] table."""
        prefix_line = f'\nprefix = "{prefix}"' if prefix else ""
        return f'url = "{self.url}"\nreconnect_max = "{reconnect_max}"{prefix_line}'

    # Its life

    def start(self) -> None:
        ports = ["--port", "0", "--tls-port", str(self.port)] if self._tls else ["--port", str(self.port)]
        secured = [word for name, value in self._tls.directives() for word in (f"--{name}", value)] if self._tls else []
        where = [*ports, *secured, "--bind", "127.0.0.1", "--unixsocket", str(self.unix_path)]
        files = ["--dir", str(self.directory), "--save", ""]
        command = [*self._program, *where, *files, *self._options]
        self._process = processes.start(command, self.directory / "redis.log")
        self.running.add(self)
        processes.wait_until(self._answers, "redis-server answers")

    def pause(self) -> None:
        """From now on it answers nothing; the kernel still takes connections and bytes for it."""
        self._running().send_signal(signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)
        self._is_paused = False

    def kill(self) -> None:
        self.running.discard(self)
        processes.kill(self._running())
        self._process = None
        self._is_paused = False

    def close(self) -> None:
        if self._process is not None:
            self.kill()

    def is_running(self) -> bool:
        return self._process is not None

    # Asking it

    def client(self) -> RedisClient:
        client = RedisClient(self.unix_path)
        try:
            if self._password:
                client.call("AUTH", self._password)
        except (OSError, RedisError):
            client.close()
            raise
        return client

    def call(self, *words: str | bytes | int) -> Any:
        if words[0] == "ACL":
            needs(6)
        with self.client() as client:
            return client.call(*words)

    def keys(self) -> list[bytes]:
        """Those of limits: without the sets in which agents are counted."""
        return sorted(key for key in self.call("KEYS", "*") if not key.endswith((b":{agents}", b"}:agents")))

    def only_key(self) -> bytes:
        (key,) = self.keys()
        return key

    def calls(self) -> Counter[str]:
        """How often each command was called, by clients and scripts, since CONFIG RESETSTAT."""
        stats = self.call("INFO", "commandstats").decode()
        return Counter({name: int(count) for name, count in re.findall(r"cmdstat_(.+?):calls=(\d+)", stats)})

    def bucket(self, key: bytes) -> StoredBucket:
        return StoredBucket.decoded(self.call("GET", key))

    def plant(self, key: bytes, value: bytes) -> None:
        """Sets a key without a TTL that nobody is to give one."""
        self.call("SET", key, value)
        self._planted.add(key)

    def keys_without_ttl(self) -> set[bytes]:
        """Those that were not planted since the last call. None, if it does not answer questions now."""
        planted, self._planted = self._planted, set()
        if self._is_paused:
            return set()
        found: set[bytes] = set()
        try:
            with self.client() as client:
                cursor = b"0"
                while True:
                    cursor, page = client.call("EVAL", _KEYS_WITHOUT_TTL, 0, cursor)
                    found.update(page)
                    if cursor == b"0":
                        return found - planted
        except (OSError, RedisError):
            return set()

    def hang(self) -> Callable[[], object]:
        """Has it run a script without end, so that it answers BUSY; what is returned ends that."""
        self.call("CONFIG", "SET", "lua-time-limit", "20")

        def run() -> None:
            try:
                self.call("EVAL", "while true do end", 0)
            except Exception:  # it is killed in the end, one way or the other
                pass

        thread = threading.Thread(target=run)
        thread.start()

        def end() -> None:
            self.call("SCRIPT", "KILL")
            thread.join()

        return end

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "redis-server is not running"
        return self._process

    def _answers(self) -> bool:
        code = self._running().poll()
        log = self.directory / "redis.log"
        assert code is None, f"redis-server ended with code {code}:\n{log.read_text(errors='replace')}"
        try:
            return bool(self.call("PING") == "PONG")
        except (OSError, RedisError):  # not listening yet, or still loading
            return False
