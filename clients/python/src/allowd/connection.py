# SPDX-License-Identifier: MIT
"""One connection to the agent: a write, and the replies to it, by a deadline."""

from __future__ import annotations

import select
import socket
import time
from typing import Dict, List, Optional, Set

from .errors import ProtocolError, TimedOut, Unavailable
from .wire import MAX_REPLY, READ_CHUNK, Reply, ReplyReader, next_msgid

MAX_ABANDONED = 64
"""Requests of timed-out calls whose late replies a connection waits to drop, before it is closed."""

# An application may have restored the default action of SIGPIPE, which is to die.
_SEND_FLAGS = getattr(socket, "MSG_NOSIGNAL", 0)


class StaleConnection(Unavailable):
    """The peer was gone before it accepted a single byte: nothing can have been charged."""


def connect(path: str) -> socket.socket:
    """A connected, non-blocking socket, without waiting.

    Errors: TimedOut if the agent's backlog is full, Unavailable if nobody listens.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.connect(path)
        return sock
    except BlockingIOError:
        sock.close()
        raise TimedOut(f"{path}: the agent's backlog is full") from None
    except OSError as error:
        sock.close()
        raise Unavailable(f"{path}: {error.strerror or error}") from error
    except BaseException:
        sock.close()
        raise


def send(sock: socket.socket, unsent: memoryview, is_first: bool) -> int:
    """How many bytes were accepted. A loss is a StaleConnection if these are the first of a request."""
    try:
        return sock.send(unsent, _SEND_FLAGS)
    except BlockingIOError:
        return 0
    except OSError as error:
        kind = StaleConnection if is_first else Unavailable
        raise kind(f"connection lost: {error.strerror or error}") from error


def receive(sock: socket.socket) -> Optional[bytes]:
    """The next bytes, or None if none are there. Unavailable if the connection has ended."""
    try:
        chunk = sock.recv(READ_CHUNK)
    except BlockingIOError:
        return None
    except OSError as error:
        raise Unavailable(f"connection lost: {error.strerror or error}") from error
    if not chunk:
        raise Unavailable("the agent closed the connection")
    return chunk


class Connection:
    """A connected, non-blocking Unix socket and what is outstanding on it.

    Replies have at most ``max_reply`` bytes. A connection for more than MAX_REPLY serves one call:
    a late reply of a megabyte would be garbage to the next, small one.

    Ownership: owns its socket; ``close`` only closes it, without a shutdown, which would also end
    the connection of a parent process that shares it.
    Threads: one caller at a time. Units: deadlines are ``time.monotonic()`` seconds.
    """

    def __init__(self, sock: socket.socket, max_reply: int = MAX_REPLY) -> None:
        self._socket = sock
        self._reader = ReplyReader(max_reply)
        self._serves_once = max_reply > MAX_REPLY
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._msgid = 0
        self._abandoned: Set[int] = set()
        self.usable = True
        """Whether another call may follow. False while one is under way, so that whatever
        interrupts it leaves a connection that is not used again."""

    @classmethod
    def open(cls, path: str, max_reply: int = MAX_REPLY) -> Connection:
        """Connects without waiting. TimedOut if the backlog is full, Unavailable if nobody listens."""
        sock = connect(path)
        try:
            return cls(sock, max_reply)
        except BaseException:
            sock.close()
            raise

    def close(self) -> None:
        self.usable = False
        self._socket.close()

    def new_msgids(self, count: int) -> List[int]:
        """Ids that no request in flight has, nor one whose late reply may still come."""
        msgids: List[int] = []
        while len(msgids) < count:
            self._msgid = next_msgid(self._msgid)
            if self._msgid not in self._abandoned:
                msgids.append(self._msgid)
        return msgids

    def exchange(
        self,
        data: bytes,
        msgids: List[int],
        replies: Dict[int, Reply],
        deadline: float,
    ) -> None:
        """Writes ``data`` and puts the reply to each of ``msgids`` into ``replies``.

        Reads while it writes, since an agent that waits for us to read would not read on. When it
        raises, ``replies`` holds those that had come:
        StaleConnection if not one byte was accepted, TimedOut, ProtocolError for garbage, Unavailable
        if the connection was lost.
        """
        if time.monotonic() >= deadline:
            raise TimedOut("the deadline passed before the request was sent")
        self.usable = False
        unsent = memoryview(data)
        awaited = set(msgids)

        unsent = unsent[self._send(unsent, is_first=True) :]
        while awaited:
            left = deadline - time.monotonic()
            # A caller that was not scheduled in time still takes an answer that is already there.
            is_last_look = left <= 0
            readable, writable = self._wait(0.0 if is_last_look else left, bool(unsent))
            if readable:
                self._receive(awaited, replies)
            if awaited and is_last_look:
                self._abandon(awaited, bool(unsent))
                raise TimedOut("no answer within the deadline")
            if writable and unsent:
                unsent = unsent[self._send(unsent, is_first=len(unsent) == len(data)) :]
        # A reply to what has not been sent yet would be a peer that guesses.
        if unsent:
            raise ProtocolError("answered before it was asked")
        self.usable = not self._serves_once

    def _wait(self, seconds: float, for_writing: bool) -> "tuple[bool, bool]":
        self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if for_writing else 0))
        events = self._poll.poll(seconds * 1000.0)
        if not events:
            return False, False
        flags = events[0][1]
        return bool(flags & ~select.POLLOUT), bool(flags & select.POLLOUT)

    def _send(self, unsent: memoryview, is_first: bool) -> int:
        return send(self._socket, unsent, is_first)

    def _receive(self, awaited: Set[int], replies: Dict[int, Reply]) -> None:
        chunk = receive(self._socket)
        if chunk is None:
            return
        self._reader.feed(chunk)
        for reply in self._reader.replies():
            if reply.msgid in awaited:
                awaited.remove(reply.msgid)
                replies[reply.msgid] = reply
            else:
                self._abandoned.discard(reply.msgid)

    def _abandon(self, awaited: Set[int], is_unsent: bool) -> None:
        # Late replies are recognised by their id and dropped, so the connection may live on, unless
        # the stream stands in the middle of a request or a reply, or too much is outstanding.
        self._abandoned |= awaited
        self.usable = (
            not self._serves_once
            and not is_unsent
            and not self._reader.is_inside_a_reply()
            and len(self._abandoned) <= MAX_ABANDONED
        )
