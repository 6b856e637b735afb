# SPDX-License-Identifier: MIT
"""Messages to bytes and back: MessagePack-RPC as the agent speaks it. No sockets, no clocks."""

from __future__ import annotations

from typing import Any, Iterator, List, NamedTuple, Sequence

import msgpack  # type: ignore[import-untyped, unused-ignore]

from .decision import Decision
from .errors import AgentError, ProtocolError, agent_error
from .nesting import nests_deeper_than

MAX_REQUEST = 8 * 1024
MAX_REPLY = 64 * 1024
MAX_LARGE_REPLY = 1024 * 1024
"""Of ``info`` and ``stats``; every other reply is held to MAX_REPLY. In bytes."""
READ_CHUNK = 64 * 1024

# The decoder allocates an array when it sees the length, not when it has the items; of nested ones, each.
_MAX_ARRAY = 1024
_MAX_LARGE_ARRAY = 32 * 1024
_MAX_DEPTH = 8
_DEPTH_IS_CHECKED_IN = 4096  # bytes from the start of a reply that is not whole
_LAST_MSGID = 2**32 - 1
_REPLY = 1


class Request:
    """One call, with its arguments already packed: a bad argument raises here, before any I/O.

    Errors: TypeError or ValueError for what MessagePack cannot hold, AgentError ``too_large`` for
    what the agent would not read.
    """

    __slots__ = ("_method", "_args", "_count", "_takes_deadline")

    def __init__(self, method: str, args: Sequence[Any] = (), *, takes_deadline: bool = False) -> None:
        self._method = _pack(method)
        self._args = b"".join([_pack(arg) for arg in args])
        self._count = len(args)
        self._takes_deadline = takes_deadline
        # With the longest msgid, so that whether a request fits does not depend on its turn.
        size = len(self.encode(_LAST_MSGID, _LAST_MSGID))
        if size > MAX_REQUEST:
            raise AgentError("too_large", f"the request has {size} bytes, at most {MAX_REQUEST} are read")

    def encode(self, msgid: int, deadline_us: int) -> bytes:
        """``[0, msgid, method, params]``, params ending with the options if the method has any."""
        count = self._count
        options = b""
        if self._takes_deadline:
            count += 1
            options = _pack({"deadline_us": deadline_us})
        return b"".join([b"\x94\x00", _pack(msgid), self._method, bytes([0x90 | count]), self._args, options])


def _pack(value: Any) -> bytes:
    try:
        # "surrogatepass": any str may be a key, also one that no UTF-8 text decodes to.
        packed: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
        return packed
    except OverflowError as error:
        raise ValueError(f"a number does not fit in 64 bits: {error}") from error


class Reply(NamedTuple):
    """``[1, msgid, error, result]``: error and result are whatever the peer sent."""

    msgid: int
    error: Any
    result: Any


class ReplyReader:
    """Cuts a byte stream into replies, however it was split on the way.

    Owned by one connection. After a ProtocolError the stream has no next message: drop both.
    Memory: what is fed must be taken with ``replies`` before the next ``feed``; then at most one
    reply of ``max_reply`` bytes, and one chunk, is held.
    """

    def __init__(self, max_reply: int) -> None:
        self._max_reply = max_reply
        self._unpacker = msgpack.Unpacker(
            raw=False,
            unicode_errors="surrogateescape",
            strict_map_key=True,
            read_size=READ_CHUNK // 4,  # the decoder's first buffer, kept while idle
            max_buffer_size=max_reply + READ_CHUNK,
            max_array_len=_MAX_ARRAY if max_reply <= MAX_REPLY else _MAX_LARGE_ARRAY,
        )
        self._fed = 0
        self._boundary = 0  # where the last whole message ended, in the same count as _fed
        self._chunk = b""
        self._beginning = b""  # of the message that is not whole yet

    def feed(self, chunk: bytes) -> None:
        try:
            self._unpacker.feed(chunk)
        except msgpack.BufferFull:
            raise ProtocolError("the reply is larger than any reply may be") from None
        self._fed += len(chunk)
        self._chunk = chunk

    def replies(self) -> Iterator[Reply]:
        """The whole replies in what was fed. Raises ProtocolError after those before the garbage."""
        while True:
            try:
                message = self._unpacker.unpack()
            except msgpack.OutOfData:
                break
            except Exception as error:
                # The decoder raises its own, ValueError, TypeError or UnicodeError: all mean garbage.
                raise ProtocolError(f"not MessagePack: {error}") from error
            end = self._unpacker.tell()
            size, self._boundary = end - self._boundary, end
            if size > self._max_reply:
                raise ProtocolError(f"a reply of {size} bytes, at most {self._max_reply} are taken")
            yield _reply(message)
        # tell() may count the start of a message that is not whole, so the own count is used.
        if self._fed - self._boundary > self._max_reply:
            raise ProtocolError(f"a reply of more than {self._max_reply} bytes")
        self._check_depth()

    def is_inside_a_reply(self) -> bool:
        """Whether the last message fed is not whole yet."""
        return self._fed != self._boundary

    def _check_depth(self) -> None:
        chunk, self._chunk = self._chunk, b""
        chunk_start = self._fed - len(chunk)
        if self._boundary > chunk_start:  # the message began in this chunk
            self._beginning = b""
            chunk = chunk[self._boundary - chunk_start :]
        wanted = _DEPTH_IS_CHECKED_IN - len(self._beginning)
        if not chunk or wanted <= 0:
            return
        self._beginning += chunk[:wanted]
        if nests_deeper_than(_MAX_DEPTH, self._beginning):
            raise ProtocolError(f"a reply nested deeper than {_MAX_DEPTH} levels")


def _reply(message: Any) -> Reply:
    if not isinstance(message, list) or len(message) < 4:
        raise ProtocolError("not an array of four or more")
    kind, msgid, error, result = message[:4]
    if type(kind) is not int or kind != _REPLY:
        raise ProtocolError("not a reply")
    if type(msgid) is not int or not 0 <= msgid <= _LAST_MSGID:
        raise ProtocolError("the msgid is no unsigned 32-bit number")
    return Reply(msgid, error, result)


def next_msgid(msgid: int) -> int:
    return 0 if msgid >= _LAST_MSGID else msgid + 1


def read_error(error: Any) -> AgentError:
    """The exception for the error slot of a reply, which is ``"code: text"``."""
    code, _, text = _text(error, "error").partition(": ")
    return agent_error(code, text)


def read_decision(result: Any) -> Decision:
    """A decision by name. Elements that a newer agent appends are ignored."""
    if not isinstance(result, list) or len(result) < 10:
        raise ProtocolError("a decision is an array of ten or more")
    fields: List[Any] = result
    if type(fields[0]) is not bool:
        raise ProtocolError("allowed is no boolean")
    return Decision(
        allowed=fields[0],
        limit=_number(fields[1], "limit"),
        remaining=_number(fields[2], "remaining"),
        retry_after_us=_number(fields[3], "retry_after_us", least=-1),
        reset_after_us=_number(fields[4], "reset_after_us"),
        verdict=_text(fields[5], "verdict"),
        source=_text(fields[6], "source"),
        tier=_text(fields[7], "tier"),
        window_us=_number(fields[8], "window_us"),
        more_after_us=_number(fields[9], "more_after_us"),
    )


def read_decisions(result: Any, count: int) -> List[Decision]:
    """The decisions of an ``allow_many`` of so many items."""
    if not isinstance(result, list) or len(result) != count:
        raise ProtocolError(f"the result is no array of {count} decisions")
    return [read_decision(decision) for decision in result]


def read_pong(result: Any) -> bool:
    if _text(result, "result") != "pong":
        raise ProtocolError("the answer to ping is not pong")
    return True


def read_map(result: Any) -> Any:
    if not isinstance(result, dict):
        raise ProtocolError("the result is no map")
    return result


def _number(value: Any, name: str, *, least: int = 0) -> int:
    if type(value) is not int or value < least:
        raise ProtocolError(f"{name} is no integer of at least {least}")
    return value


def _text(value: Any, name: str) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if not isinstance(value, str):
        raise ProtocolError(f"{name} is no string")
    return value
