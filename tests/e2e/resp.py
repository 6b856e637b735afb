# SPDX-License-Identifier: MIT
"""Redis's protocol, RESP2, as far as the tests speak it."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any


class RedisError(Exception):
    """Redis answered an error."""


def encode(*words: str | bytes | int) -> bytes:
    """A command, or any array of bulk strings."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


class Stream:
    """Reads RESP values off a blocking socket; ConnectionError at its end."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._buffer = b""

    def read(self) -> Any:
        line = self._take_line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode()
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self._take(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.read() for _ in range(int(rest))]
        raise RedisError(rest.decode(errors="replace"))

    def _take_line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            self._fill()
        line, self._buffer = self._buffer.split(b"\r\n", 1)
        return line

    def _take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._fill()
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _fill(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("the peer hung up")
        self._buffer += data


class RedisClient:
    """One connection to a Redis server, at a Unix socket or a port of the loopback address; with `tls` over TLS."""

    def __init__(self, address: Path | int, timeout: float = 10.0, tls: ssl.SSLContext | None = None) -> None:
        is_unix = isinstance(address, Path)
        connection = socket.socket(socket.AF_UNIX if is_unix else socket.AF_INET)
        connection.settimeout(timeout)
        try:
            connection.connect(str(address) if is_unix else ("127.0.0.1", address))
            if tls:
                connection = tls.wrap_socket(connection, server_hostname="127.0.0.1")
        except OSError:
            connection.close()
            raise
        self._stream = Stream(connection)

    def __enter__(self) -> RedisClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._stream.socket.close()

    def pipeline(self, *commands: tuple[str | bytes | int, ...]) -> list[Any]:
        """Sends the commands with one write."""
        self._stream.socket.sendall(b"".join(encode(*command) for command in commands))
        return [self._stream.read() for _ in commands]

    def call(self, *words: str | bytes | int) -> Any:
        self._stream.socket.sendall(encode(*words))
        return self._stream.read()
