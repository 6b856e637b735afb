# SPDX-License-Identifier: MIT
"""The asyncio client: one method per question, and a connection per event loop."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any, Callable, Dict, Iterable, List, Optional, Set, Tuple, TypeVar, Union

from ..breaker import Breaker, Outcome
from ..call import (
    Call,
    Key,
    Limit,
    batch_call,
    checked_policy,
    checked_timeout,
    decision_call,
    many_call,
    map_call,
    only_answer,
    ping_call,
)
from ..connection import StaleConnection, connect
from ..decision import Decision
from ..discovery import socket_to_use
from ..errors import AllowdError, TimedOut, Unavailable
from ..process import PerProcess, Process, not_asked
from ..wire import MAX_REPLY
from .connection import AsyncConnection, GivenUp

T = TypeVar("T")
_Connect = Callable[[asyncio.AbstractEventLoop, int], AsyncConnection]


class AsyncClient:
    """Asks the allowd agent of this host without blocking the event loop.

    The same questions, options, errors and promises as ``allowd.Client``: one deadline over everything,
    nothing sent twice that may have been charged, no waiting for an agent to come back, and a decision
    by ``fail`` when the agent gives none.

    Tasks: share one client. All of a loop's calls go over one connection. A task may be cancelled at
    any time: its request may have been charged, and no other call is disturbed.
    Loops and threads: safe. Each loop has its own connection; the breaker is the process's.
    Forks: safe, if the child runs a loop of its own.
    Ownership: close it (or use ``async with``). It has no tasks and no threads.
    Units: timeouts are seconds.
    """

    def __init__(
        self,
        socket_path: Union[str, "os.PathLike[str]", None] = None,
        timeout: float = 0.05,
        fail: str = "open",
        *,
        breaker: Optional[Breaker] = None,
    ) -> None:
        """Does no I/O and needs no running loop. Arguments as of ``allowd.Client``."""
        self._socket_path = None if socket_path is None else os.fspath(socket_path)
        self._timeout = checked_timeout(timeout)
        self._fail = checked_policy(fail)
        self._breaker = Breaker() if breaker is None else breaker
        self._closed = False
        self._processes = PerProcess(self._new_process)

    # -- Decisions -----------------------------------------------------------------------------

    async def allow(
        self,
        limit: Limit,
        key: Key,
        cost: int = 1,
        *,
        timeout: Optional[float] = None,
        fail: Optional[str] = None,
    ) -> Decision:
        """Charges ``cost`` to ``key`` if all of it may pass now.

        ``timeout`` (seconds) and ``fail`` override the client's own for this call. Cost 0 charges
        nothing and is a peek.

        Errors: AgentError for the caller's mistakes (``bad_request``, ``unknown_limit``, ...),
        TypeError or ValueError for arguments that cannot be sent. Nothing else.
        """
        policy = self._policy(fail)
        answers = await self._ask(decision_call("allow", limit, key, cost), timeout)
        return self._here().settle(answers[0], policy)

    async def peek(
        self,
        limit: Limit,
        key: Key,
        cost: int = 1,
        *,
        timeout: Optional[float] = None,
        fail: Optional[str] = None,
    ) -> Decision:
        """What ``allow`` would answer now; charges nothing. Errors as for ``allow``."""
        policy = self._policy(fail)
        answers = await self._ask(decision_call("peek", limit, key, cost), timeout)
        return self._here().settle(answers[0], policy)

    async def refund(
        self,
        limit: Limit,
        key: Key,
        cost: int = 1,
        *,
        timeout: Optional[float] = None,
        fail: Optional[str] = None,
    ) -> Decision:
        """Gives ``cost`` back to ``key``, never above full; the decision is as after it.

        A degraded decision means that nothing is known to have been given back. It is not tried
        again: it may have been.

        Errors: AgentError ``forbidden`` unless the limit says ``refund = true``; others as for ``allow``.
        """
        policy = self._policy(fail)
        answers = await self._ask(decision_call("refund", limit, key, cost), timeout)
        return self._here().settle(answers[0], policy)

    async def allow_batch(
        self,
        items: Iterable[Tuple[Limit, Key, int]],
        *,
        timeout: Optional[float] = None,
        fail: Optional[str] = None,
    ) -> List[Decision]:
        """Asks for each ``(limit, key, cost)`` by itself, in one write and under one deadline.

        Returns a decision per item, in order. Items that got no answer in time, or whose connection
        broke, are decided by the fail policy; the answers that came are kept.

        Errors: AgentError of the first item that is a caller's mistake, with ``index`` and
        ``decisions``; ValueError for more than MAX_BATCH items.
        """
        policy = self._policy(fail)
        answers = await self._ask(batch_call(items), timeout)
        return self._here().settle_batch(answers, policy)

    async def allow_many(
        self,
        items: Iterable[Tuple[Limit, Key, int]],
        mode: str = "each",
        *,
        timeout: Optional[float] = None,
        fail: Optional[str] = None,
    ) -> List[Decision]:
        """Asks for all ``(limit, key, cost)`` as one request, which the agent decides at once.

        ``mode``: with ``"each"`` items are decided by themselves; with ``"all"`` they are charged if
        all of them pass, else none is. Returns a decision per item, in order. Without an answer
        the fail policy decides every item.

        Errors: AgentError if any item is a caller's mistake, and then none was charged; ValueError
        for more than MAX_MANY items, or another mode.
        """
        policy = self._policy(fail)
        wanted = list(items)
        answers = await self._ask(many_call(wanted, mode), timeout)
        return self._here().settle_many(answers, policy, len(wanted))

    # -- Questions about the agent -------------------------------------------------------------

    async def ping(self, *, timeout: Optional[float] = None) -> bool:
        """True if the agent answers. Errors: Unavailable, TimedOut, AgentError."""
        return only_answer(await self._ask(ping_call(), timeout))

    async def info(self, *, timeout: Optional[float] = None) -> Dict[str, Any]:
        """Version, features, limits and so on, as the agent tells it. Errors as for ``ping``."""
        return only_answer(await self._ask(map_call("info"), timeout))

    async def stats(self, *, timeout: Optional[float] = None) -> Dict[str, Any]:
        """The agent's counters. Errors as for ``ping``."""
        return only_answer(await self._ask(map_call("stats"), timeout))

    @property
    def degraded_total(self) -> int:
        """How many decisions the fail policy has made in this process."""
        return self._here().degraded_total

    # -- Life ----------------------------------------------------------------------------------

    async def close(self) -> None:
        """Closes idle connections, and those in use when their calls end. Twice is fine.

        Connections of other running loops are closed at their next turn.
        """
        self._closed = True
        self._here().close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    # -- Inside --------------------------------------------------------------------------------

    async def _ask(self, call: Call[T], timeout: Optional[float]) -> List[Union[T, AllowdError]]:
        """An answer or an error for each request of the call, in order."""
        if self._closed:
            raise AllowdError("the client is closed")
        deadline = time.monotonic() + (self._timeout if timeout is None else checked_timeout(timeout))
        if not call.requests:
            return []
        here = self._here()
        ticket = here.breaker.admit()
        if ticket is None:
            return call.failed(not_asked())
        outcome = Outcome.WITHDRAWN
        try:
            answers = await self._ask_agent(call, here, deadline)
            outcome = _outcome_of(answers)
        finally:
            here.breaker.record(ticket, outcome)
        return answers

    async def _ask_agent(
        self, call: Call[T], here: "_Process", deadline: float
    ) -> List[Union[T, AllowdError]]:
        try:
            connections = here.connections_of(asyncio.get_running_loop())
            if call.is_large:
                return await connections.ask_alone(call, self._connect, deadline)
            connection = connections.shared
            if connection is not None and connection.is_open:
                try:
                    return await connection.exchange(call, deadline)
                except StaleConnection:
                    pass  # Not a byte was accepted, so asking again cannot charge twice. Once only.
            return await connections.share(self._connect).exchange(call, deadline)
        except Unavailable as error:
            return call.failed(error)

    def _policy(self, fail: Optional[str]) -> str:
        return self._fail if fail is None else checked_policy(fail)

    def _here(self) -> "_Process":
        return self._processes.here()

    def _new_process(self) -> "_Process":
        return _Process(self._breaker.fresh())

    def _connect(self, loop: asyncio.AbstractEventLoop, max_reply: int) -> AsyncConnection:
        sock = connect(socket_to_use(self._socket_path))
        try:
            return AsyncConnection(sock, loop, max_reply)
        except BaseException as error:
            sock.close()
            if isinstance(error, OSError):
                raise Unavailable(f"the event loop does not take a connection: {error}") from error
            raise


def _outcome_of(answers: List[Any]) -> Outcome:
    if any(isinstance(answer, TimedOut) for answer in answers):
        return Outcome.TIMED_OUT
    return Outcome.WITHDRAWN if any(isinstance(answer, GivenUp) for answer in answers) else Outcome.PROMPT


class _Connections:
    """Of one client in one event loop, and used by that loop's thread alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop, is_closed: bool) -> None:
        self.loop = loop
        self.shared: Optional[AsyncConnection] = None
        self._alone: Set[AsyncConnection] = set()
        self._is_closed = is_closed

    def share(self, open_one: _Connect) -> AsyncConnection:
        """The connection for all calls, opened if there is none."""
        if self._is_closed:
            raise Unavailable("the client was closed")
        if self.shared is None or not self.shared.is_open:
            self.shared = open_one(self.loop, MAX_REPLY)
        return self.shared

    async def ask_alone(
        self, call: Call[T], open_one: _Connect, deadline: float
    ) -> List[Union[T, AllowdError]]:
        """On a connection that is closed after the call: a late megabyte must not reach a small one."""
        connection = open_one(self.loop, call.max_reply)
        self._alone.add(connection)
        try:
            return await connection.exchange(call, deadline)
        finally:
            self._alone.discard(connection)
            connection.close()

    def retire(self) -> None:
        self._is_closed = True
        if self.shared is not None:
            self.shared.retire()

    def drop(self) -> None:
        """Of a loop that is closed: no call can be under way."""
        for connection in self._all():
            connection.close()

    def drop_inherited(self) -> None:
        for connection in self._all():
            connection.drop_inherited()

    def _all(self) -> List[AsyncConnection]:
        return [*self._alone, *([] if self.shared is None else [self.shared])]


class _Process(Process):
    def __init__(self, breaker: Breaker) -> None:
        super().__init__(breaker)
        self._loops: Dict[asyncio.AbstractEventLoop, _Connections] = {}
        self._loops_lock = threading.Lock()
        self._is_closed = False

    def connections_of(self, loop: asyncio.AbstractEventLoop) -> _Connections:
        known = self._loops.get(loop)
        if known is not None:
            return known
        with self._loops_lock:
            for other in [other for other in self._loops if other.is_closed()]:
                self._loops.pop(other).drop()
            return self._loops.setdefault(loop, _Connections(loop, self._is_closed))

    def close(self) -> None:
        """Called on a running loop; other loops' connections are theirs to close."""
        with self._loops_lock:
            self._is_closed = True
            loops, self._loops = self._loops, {}
        current = asyncio.get_running_loop()
        for loop, connections in loops.items():
            if loop is not current and loop.is_running():
                try:
                    loop.call_soon_threadsafe(connections.retire)
                    continue
                except RuntimeError:
                    pass  # it was closed just now
            connections.drop() if loop.is_closed() else connections.retire()

    def let_go(self) -> None:
        for connections in list(self._loops.values()):
            connections.drop_inherited()
