# SPDX-License-Identifier: MIT
"""One connection to the agent, shared by the tasks of an event loop."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import OrderedDict
from typing import Any, Dict, List, Optional, Set, Union

from ..call import Call
from ..connection import MAX_ABANDONED, StaleConnection, receive, send
from ..errors import AllowdError, ProtocolError, TimedOut, Unavailable
from ..wire import MAX_REPLY, ReplyReader, next_msgid

_LAST_LOOK_CHUNKS = 16  # more than all answers that can be outstanding


class GivenUp(Unavailable):
    """Another call's time-out ended the connection; says nothing of how long this one would have waited."""


class Exchange:
    """One call on a connection: what is unsent of its write, and the answers that came."""

    def __init__(
        self, call: Call[Any], msgids: List[int], data: bytes, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.call = call
        self.msgids = msgids
        self.answers: Dict[int, Any] = {}
        self.unsent = memoryview(data)
        self.is_untouched = True
        """Whether not one byte was accepted."""
        self.failure: Optional[AllowdError] = None
        self.has_ended = False
        self.timer: Optional[asyncio.TimerHandle] = None
        self.ended: "asyncio.Future[None]" = loop.create_future()

    @property
    def is_answered(self) -> bool:
        return len(self.answers) == len(self.msgids)

    def outcome(self) -> List[Union[Any, AllowdError]]:
        """An answer or the failure for each request, in order."""
        return [self.answers.get(msgid, self.failure) for msgid in self.msgids]


class AsyncConnection:
    """A connected socket that many calls share; replies find their call by msgid.

    No task and no lock: everything happens in the callers' steps and in the loop's callbacks. A call
    that ends early, by its deadline or because its task was cancelled, takes back what has not been
    sent of it, and leaves the ids of what has been, for late replies to be dropped.

    Ownership: owns its socket. ``close`` fails the calls in flight; ``retire`` lets them end first.
    Threads: the loop's alone. Units: deadlines are ``time.monotonic()`` seconds.
    Memory: what live calls hold, MAX_ABANDONED ids, and what a ReplyReader holds.
    """

    def __init__(
        self, sock: socket.socket, loop: asyncio.AbstractEventLoop, max_reply: int = MAX_REPLY
    ) -> None:
        self._socket = sock
        self._loop = loop
        self._reader = ReplyReader(max_reply)
        self._msgid = 0
        self._in_flight: Dict[int, Exchange] = {}  # by each id that is not answered
        self._abandoned: Set[int] = set()
        self._unsent: "OrderedDict[Exchange, None]" = OrderedDict()  # in the order of writing
        self._is_writing = False  # whether the loop tells when the socket takes more
        self._is_retired = False
        self.is_open = True
        # By number: a loop may keep a socket object open until it is removed, and a child must not remove it.
        self._fd = sock.fileno()
        loop.add_reader(self._fd, self._on_readable)

    # -- For callers ---------------------------------------------------------------------------

    async def exchange(self, call: Call[Any], deadline: float) -> List[Union[Any, AllowdError]]:
        """An answer or an error for each request of the call, in order.

        Errors: StaleConnection if the connection was dead before it took a byte of this call.
        """
        left = deadline - time.monotonic()
        if left <= 0:
            return call.failed(TimedOut("the deadline passed before the request was sent"))
        msgids = self._new_msgids(len(call.requests))
        exchange = Exchange(call, msgids, call.encode(msgids, left), self._loop)
        for msgid in msgids:
            self._in_flight[msgid] = exchange
        exchange.timer = self._loop.call_later(left, self._on_deadline, exchange)
        self._unsent[exchange] = None
        try:
            if not self._is_writing:
                self._write()
            await exchange.ended
        finally:
            self._withdraw(exchange)
        if isinstance(exchange.failure, StaleConnection):
            raise exchange.failure
        return exchange.outcome()

    def retire(self) -> None:
        """Closes now if no call is in flight, else when the last has ended."""
        self._is_retired = True
        self._close_if_done()

    def close(self, failure: Optional[Unavailable] = None) -> None:
        """Closes, and fails the calls in flight. Twice is fine."""
        if not self.is_open:
            return
        self.is_open = False
        in_flight = {*self._in_flight.values(), *self._unsent}
        self._in_flight.clear()
        self._unsent.clear()
        self._abandoned.clear()
        if self._loop.is_closed():
            self._socket.close()
            return
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._socket.close()
        for exchange in in_flight:
            self._end(exchange, failure or Unavailable("the connection was closed"))

    def drop_inherited(self) -> None:
        """In a forked child: closes this process's copy. The loop's selector is shared with the parent, so
        nothing may be removed from it."""
        self.is_open = False
        self._socket.close()

    # -- Writing -------------------------------------------------------------------------------

    def _write(self) -> None:
        while self._unsent:
            exchange = next(iter(self._unsent))
            try:
                sent = send(self._socket, exchange.unsent, exchange.is_untouched)
            except Unavailable as error:
                self._lose(error)
                return
            if sent:
                exchange.is_untouched = False
                exchange.unsent = exchange.unsent[sent:]
            if exchange.unsent:
                break
            del self._unsent[exchange]
        if bool(self._unsent) != self._is_writing:
            self._is_writing = bool(self._unsent)
            if self._is_writing:
                self._loop.add_writer(self._fd, self._write)
            else:
                self._loop.remove_writer(self._fd)

    def _new_msgids(self, count: int) -> List[int]:
        msgids: List[int] = []
        while len(msgids) < count:
            self._msgid = next_msgid(self._msgid)
            if self._msgid not in self._abandoned and self._msgid not in self._in_flight:
                msgids.append(self._msgid)
        return msgids

    # -- Reading -------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        try:
            self._receive()
        except Unavailable as error:
            self.close(error)

    def _receive(self) -> bool:
        """Takes the replies that are there, and says whether any bytes were."""
        chunk = receive(self._socket)
        if chunk is None:
            return False
        self._reader.feed(chunk)
        for reply in self._reader.replies():
            exchange = self._in_flight.pop(reply.msgid, None)
            if exchange is None:
                self._abandoned.discard(reply.msgid)
                continue
            answer = exchange.call.answer(reply)
            exchange.answers[reply.msgid] = answer
            if exchange.is_answered:
                # A reply to what has not been sent yet would be a peer that guesses.
                self._end(exchange, None)
                if exchange.unsent:
                    raise ProtocolError("answered before it was asked")
            if isinstance(answer, ProtocolError):
                raise answer
        return True

    def _lose(self, error: Unavailable) -> None:
        """The peer is gone: what it answered before counts, what it took may have been charged."""
        try:
            while self._receive():
                pass
        except Unavailable:
            pass
        self.close(error)

    # -- Ending --------------------------------------------------------------------------------

    def _on_deadline(self, exchange: Exchange) -> None:
        # A loop that did not come round in time still takes an answer that is already there.
        try:
            for _ in range(_LAST_LOOK_CHUNKS):
                if exchange.has_ended or not self._receive():
                    break
        except Unavailable as error:
            self.close(error)
        if not exchange.has_ended:
            self._end(exchange, TimedOut("no answer within the deadline"))
            self._abandon(exchange)
            if self._reader.is_inside_a_reply():
                self._give_up()

    def _withdraw(self, exchange: Exchange) -> None:
        """After the caller has left, whatever made it leave."""
        if not exchange.has_ended:
            self._end(exchange, Unavailable("the call was interrupted"))
            self._abandon(exchange)
        self._close_if_done()

    def _end(self, exchange: Exchange, failure: Optional[AllowdError]) -> None:
        if exchange.has_ended:
            return
        exchange.has_ended = True
        if failure is not None and not self.is_open:
            kind = StaleConnection if exchange.is_untouched else Unavailable
            if exchange.is_untouched or isinstance(failure, StaleConnection):
                failure = kind(str(failure))
        exchange.failure = failure
        if exchange.timer is not None:
            exchange.timer.cancel()
        if not exchange.ended.done():  # a cancelled task has cancelled it
            exchange.ended.set_result(None)

    def _abandon(self, exchange: Exchange) -> None:
        """Leaves an unanswered call. Its late replies are recognised by their id and dropped, so the
        connection lives on, unless it is in the middle of the request or too much is outstanding."""
        for msgid in exchange.msgids:
            if self._in_flight.pop(msgid, None) is not None and not exchange.is_untouched:
                self._abandoned.add(msgid)
        if exchange.is_untouched:
            self._unsent.pop(exchange, None)
        elif exchange.unsent or len(self._abandoned) > MAX_ABANDONED:
            self._give_up()

    def _give_up(self) -> None:
        self.close(GivenUp("the connection was closed after another call had ended early"))

    def _close_if_done(self) -> None:
        if self._is_retired and not self._in_flight:
            self.close()
