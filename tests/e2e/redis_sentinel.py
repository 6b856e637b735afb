# SPDX-License-Identifier: MIT
"""A master, a replica and three real redis-sentinels that watch over them, if wanted over TLS alone.

Ownership  A SentinelTrio owns all five processes and their files. close() ends exactly those.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import processes
from certificates import TlsFiles
from ports import free_port
from redis_server import RedisServer, needs, program
from resp import RedisClient, RedisError

MASTER = "main"
_DOWN_AFTER_MS = 700  # how long a server is silent until a sentinel takes it for dead


def _over_tls(tls: TlsFiles) -> list[str]:
    """Lines of a config, also for what this server says to others."""
    return [*(f"{name} {value}" for name, value in tls.directives()), "tls-replication yes"]


class Sentinel:
    """One redis-sentinel."""

    def __init__(
        self, directory: Path, master_port: int, server_password: str, password: str, tls: TlsFiles | None
    ) -> None:
        directory.mkdir()
        self.port = free_port()
        self._password = password
        self._tls = tls
        self._log = directory / "sentinel.log"
        config = directory / "sentinel.conf"
        lines = [
            *([f"tls-port {self.port}", "port 0", *_over_tls(tls)] if tls else [f"port {self.port}"]),
            "bind 127.0.0.1",
            f"dir {directory}",
            f"sentinel monitor {MASTER} 127.0.0.1 {master_port} 2",
            f"sentinel down-after-milliseconds {MASTER} {_DOWN_AFTER_MS}",
            f"sentinel failover-timeout {MASTER} 3000",
        ]
        if server_password:
            lines.append(f"sentinel auth-pass {MASTER} {server_password}")
        if password:
            lines += [f"requirepass {password}", f"sentinel sentinel-pass {password}"]
        config.write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = processes.start([program(), config, "--sentinel"], self._log)

    @property
    def url(self) -> str:
        return f"{'rediss' if self._tls else 'redis'}://127.0.0.1:{self.port}"

    def call(self, *words: str | int) -> Any:
        with RedisClient(self.port, tls=self._tls.context() if self._tls else None) as client:
            if self._password:
                client.call("AUTH", self._password)
            return client.call(*words)

    def is_ready(self) -> bool:
        """It knows the replica and enough other sentinels for a failover."""
        try:
            known = self.call("SENTINEL", "REPLICAS", MASTER)
            quorum = self.call("SENTINEL", "CKQUORUM", MASTER)
        except (OSError, RedisError):
            return False
        fields = dict(zip(known[0][::2], known[0][1::2], strict=True)) if known else {}
        return fields.get(b"master-link-status") == b"ok" and str(quorum).startswith("OK 3")

    def kill(self) -> None:
        if self._process is not None:
            processes.kill(self._process)
        self._process = None


class SentinelTrio:
    """Running, and ready for a failover."""

    def __init__(
        self, directory: Path, *, server_password: str = "", password: str = "", tls: TlsFiles | None = None
    ) -> None:
        if password:
            needs(6, 2)
        directory.mkdir(exist_ok=True)
        among = ["--masterauth", server_password] if server_password else []
        if tls:
            among += ["--tls-replication", "yes"]
        self.servers: list[RedisServer] = []
        self.sentinels: list[Sentinel] = []
        try:
            first = RedisServer(directory / "m", *among, password=server_password, tls=tls)
            self.servers.append(first)
            first.start()
            replica = ["--replicaof", "127.0.0.1", str(first.port), "--repl-diskless-sync-delay", "0"]
            self.servers.append(RedisServer(directory / "r", *among, *replica, password=server_password, tls=tls))
            self.servers[1].start()
            for number in range(3):
                self.sentinels.append(Sentinel(directory / f"s{number}", first.port, server_password, password, tls))
            for sentinel in self.sentinels:
                processes.wait_until(sentinel.is_ready, "a sentinel knows the others", 30)
        except BaseException:
            self.close()
            raise

    def config(self, *lines: str, sentinel: str = "") -> str:
        """The lines of an agent's [redis] table; `sentinel` goes into the sentinel table."""
        nodes = ", ".join(f'"{node.url}"' for node in self.sentinels)
        table = f'sentinel = {{ master = "{MASTER}", nodes = [ {nodes} ]{", " + sentinel if sentinel else ""} }}'
        return "\n".join([table, 'reconnect_max = "250ms"', *lines])

    @property
    def master(self) -> RedisServer:
        """The one that says so of itself."""
        for server in self.servers:
            if self.role(server) == b"master":
                return server
        raise AssertionError("there is no master")

    def other(self, server: RedisServer) -> RedisServer:
        (other,) = [one for one in self.servers if one is not server]
        return other

    def role(self, server: RedisServer) -> bytes:
        try:
            return bytes(server.call("ROLE")[0])
        except (OSError, RedisError):
            return b""

    def wait_until_master(self, server: RedisServer) -> float:
        """When the server had become one."""
        processes.wait_until(lambda: self.role(server) == b"master", "it is the master", 30)
        return time.monotonic()

    def close(self) -> None:
        for sentinel in self.sentinels:
            sentinel.kill()
        for server in self.servers:
            server.close()
