# SPDX-License-Identifier: MIT
"""The two protocols, as far as the benchmark's runner speaks them itself: setting up and reading counters.

Nothing here is measured. Everything that goes wrong is a WireError.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Any


class WireError(Exception):
    """The peer is not there, hung up, or said something unexpected."""


class _Stream:
    """A buffered blocking connection. Time-outs in seconds."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._buffer = b""

    def send(self, data: bytes) -> None:
        self._connection.sendall(data)

    def take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._fill()
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def take_line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            self._fill()
        line, self._buffer = self._buffer.split(b"\r\n", 1)
        return line

    def close(self) -> None:
        self._connection.close()

    def _fill(self) -> None:
        part = self._connection.recv(65536)
        if not part:
            raise WireError("the peer hung up")
        self._buffer += part


class RedisClient:
    """A few Redis commands over one connection to the loopback address."""

    def __init__(self, port: int, timeout: float = 5.0) -> None:
        self._stream = _Stream(socket.create_connection(("127.0.0.1", port), timeout))

    def __enter__(self) -> RedisClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def call(self, *words: str) -> Any:
        encoded = [word.encode() for word in words]
        bulks = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in encoded)
        self._stream.send(b"*%d\r\n%s" % (len(encoded), bulks))
        return self._reply()

    def cpu_seconds(self) -> float:
        """What the server has used so far, user and system."""
        cpu = self._info("cpu")
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])

    def used_bytes(self) -> int:
        """What the server has allocated."""
        return int(self._info("memory")["used_memory"])

    def script_calls(self) -> int:
        """How many EVALSHA the server has run so far."""
        return self.command_calls().get("evalsha", 0)

    def command_calls(self) -> dict[str, int]:
        """How often each command has been run so far, by clients and by scripts."""
        prefix = "cmdstat_"
        return {
            name.removeprefix(prefix): int(dict(part.split("=", 1) for part in entry.split(","))["calls"])
            for name, entry in self._info("commandstats").items()
            if name.startswith(prefix)
        }

    def _info(self, section: str) -> dict[str, str]:
        text = self.call("INFO", section).decode()
        return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def _reply(self) -> Any:
        line = self._stream.take_line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode()
        if kind == b":":
            return int(rest)
        if kind == b"$":
            size = int(rest)
            return None if size < 0 else self._stream.take(size + 2)[:-2]
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        raise WireError(f"redis: {rest.decode(errors='replace')}")


_FIXED = {
    0xCA: ">f", 0xCB: ">d",
    0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_LENGTHS = {
    0xC4: ">B", 0xC5: ">H", 0xC6: ">I",
    0xD9: ">B", 0xDA: ">H", 0xDB: ">I",
    0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I",
}  # fmt: skip


def _unpack(take: Any, form: str) -> Any:
    return struct.unpack(form, take(struct.calcsize(form)))[0]


def decode(take: Any) -> Any:
    """Decodes one MessagePack value; `take(n)` yields its next n bytes. Extension types are not spoken."""
    lead = take(1)[0]
    if lead < 0x80:
        return lead
    if lead >= 0xE0:
        return lead - 0x100
    if lead in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[lead]
    if lead in _FIXED:
        return _unpack(take, _FIXED[lead])
    if lead < 0x90:
        return _decode_map(take, lead & 15)
    if lead < 0xA0:
        return [decode(take) for _ in range(lead & 15)]
    if lead < 0xC0:
        return take(lead & 31).decode(errors="replace")
    if lead not in _LENGTHS:
        raise WireError(f"MessagePack type {lead:#x} was not expected")
    length = _unpack(take, _LENGTHS[lead])
    if lead in (0xDC, 0xDD):
        return [decode(take) for _ in range(length)]
    if lead in (0xDE, 0xDF):
        return _decode_map(take, length)
    raw = take(length)
    return raw if lead <= 0xC6 else raw.decode(errors="replace")


def _decode_map(take: Any, pairs: int) -> dict[Any, Any]:
    return {decode(take): decode(take) for _ in range(pairs)}


def decode_hex(text: str) -> Any:
    """Decodes the one MessagePack value that `text` is."""
    data = bytes.fromhex(text)
    position = 0

    def take(count: int) -> bytes:
        nonlocal position
        position += count
        if position > len(data):
            raise WireError("MessagePack value cut short")
        return data[position - count : position]

    return decode(take)


def _encode_text(text: str) -> bytes:
    data = text.encode()
    if len(data) > 31:
        raise ValueError("text too long for a fixstr")
    return bytes([0xA0 | len(data)]) + data


class AgentClient:
    """One connection to an agent, one RPC at a time."""

    def __init__(self, path: Path, timeout: float = 5.0) -> None:
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(timeout)
        self._stream = _Stream(self._connection)
        try:
            self._connection.connect(str(path))
        except OSError:
            self._connection.close()
            raise

    def __enter__(self) -> AgentClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def ask(self, method: str, *params: str) -> Any:
        """Returns the result of one call."""
        request = [b"\x94\x00\x01", _encode_text(method), bytes([0x90 | len(params)]), *map(_encode_text, params)]
        self._stream.send(b"".join(request))
        reply = decode(self._stream.take)
        if not isinstance(reply, list) or reply[:2] != [1, 1] or len(reply) != 4:
            raise WireError(f"{method}: not an answer: {reply!r}")
        if reply[2] is not None:
            raise WireError(f"{method}: {reply[2]}")
        return reply[3]


def ask_agent(path: Path, method: str, *params: str, timeout: float = 5.0) -> Any:
    """One RPC on a connection of its own; returns its result."""
    with AgentClient(path, timeout) as client:
        return client.ask(method, *params)
