# SPDX-License-Identifier: MIT
"""MessagePack-RPC over a Unix socket, close to the bytes: nothing is retried, checked or hidden.

Errors     Refused when the agent answers an error, HungUp when it ends the connection, TimeoutError when it does
           neither in time.
"""

from __future__ import annotations

import itertools
import socket
from pathlib import Path
from typing import Any, NamedTuple

import msgpack

DEFAULT_TIMEOUT = 15.0  # seconds; only a hang lasts as long


class Refused(Exception):
    """The agent answered with an error, "code: text"."""

    def __init__(self, error: str) -> None:
        super().__init__(error)
        self.code, _, self.text = error.partition(": ")


class HungUp(Exception):
    """The agent ended the connection."""


class Decision(NamedTuple):
    allowed: bool
    limit: int
    remaining: int
    retry_after_us: int
    reset_after_us: int
    verdict: str
    source: str
    tier: str
    window_us: int
    more_after_us: int


class Reply(NamedTuple):
    msgid: int
    error: str | None
    result: Any
    encoded: bytes  # the whole message as it came


def request(method: str | bytes, *params: Any, msgid: int = 1) -> bytes:
    return bytes(msgpack.packb([0, msgid, method, list(params)]))


def _connected(path: Path, timeout: float) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


class Client:
    """One connection to the application socket."""

    def __init__(self, path: Path, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.socket = _connected(path, timeout)
        self._msgids = itertools.count(1)
        self._received = bytearray()
        self._start = 0  # of the next message in what was received
        self._unpacker = msgpack.Unpacker(raw=False, strict_map_key=False, unicode_errors="strict")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # Sending

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def post(self, method: str | bytes, *params: Any) -> int:
        """Sends a request and returns its msgid."""
        msgid = next(self._msgids)
        self.send(request(method, *params, msgid=msgid))
        return msgid

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    # Receiving

    def receive(self) -> Reply:
        """The next reply, whichever request it belongs to."""
        while True:
            try:
                message = self._unpacker.unpack()
            except msgpack.OutOfData:
                self._fill()
                continue
            end = self._unpacker.tell()
            encoded, self._start = bytes(self._received[self._start : end]), end
            assert isinstance(message, list) and len(message) == 4 and message[0] == 1, message
            _, msgid, error, result = message
            return Reply(msgid, error, result, encoded)

    def receive_many(self, count: int) -> dict[int, Reply]:
        """That many replies by msgid; fails when two carry the same."""
        replies: dict[int, Reply] = {}
        for _ in range(count):
            reply = self.receive()
            assert reply.msgid not in replies, f"msgid {reply.msgid} was answered twice"
            replies[reply.msgid] = reply
        return replies

    def stays_silent(self, seconds: float = 0.3) -> bool:
        """Whether neither a byte nor an end arrives within that time."""
        before = self.socket.gettimeout()
        self.socket.settimeout(seconds)
        try:
            self._fill()
        except TimeoutError:
            return True
        except HungUp:
            return False
        finally:
            self.socket.settimeout(before)
        return False

    def is_hung_up(self, within: float = DEFAULT_TIMEOUT) -> bool:
        """Whether the agent ends the connection within that time. What it still sends is thrown away."""
        self.socket.settimeout(within)
        try:
            while True:
                self._fill()
        except HungUp:
            return True
        except TimeoutError:
            return False

    def _fill(self) -> None:
        try:
            data = self.socket.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            data = b""
        if not data:
            raise HungUp
        self._received += data
        self._unpacker.feed(data)

    # Asking

    def ask(self, method: str | bytes, *params: Any) -> Any:
        """One request and its result."""
        msgid = self.post(method, *params)
        reply = self.receive()
        assert reply.msgid == msgid, f"asked {msgid}, and {reply.msgid} was answered"
        if reply.error is not None:
            raise Refused(reply.error)
        return reply.result

    def allow(self, limit: Any, key: str | bytes, cost: int | None = None, **options: Any) -> Decision:
        return Decision(*self.ask("allow", limit, key, cost, *([options] if options else [])))

    def peek(self, limit: Any, key: str | bytes, cost: int | None = None) -> Decision:
        return Decision(*self.ask("peek", limit, key, cost))

    def refund(self, limit: Any, key: str | bytes, cost: int | None = None) -> Decision:
        return Decision(*self.ask("refund", limit, key, cost))


class AdminClient:
    """One connection to the admin socket."""

    def __init__(self, path: Path, timeout: float = DEFAULT_TIMEOUT) -> None:
        self.socket = _connected(path, timeout)
        self._buffer = b""

    def __enter__(self) -> AdminClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> str:
        """The next answer, without the empty line that ends it."""
        while b"\n\n" not in self._buffer:
            data = self.socket.recv(65536)
            if not data:
                raise HungUp
            self._buffer += data
        body, self._buffer = self._buffer.split(b"\n\n", 1)
        return body.decode() + "\n"

    def ask(self, line: str) -> str:
        self.send(line.encode() + b"\n")
        return self.receive()
