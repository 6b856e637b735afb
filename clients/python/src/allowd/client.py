# SPDX-License-Identifier: MIT
"""The client: deadlines, fail policy, and one method per question."""

from __future__ import annotations

import os
import time
from typing import Any, Dict, Iterable, List, Optional, Tuple, TypeVar, Union

from .breaker import Breaker, Outcome
from .call import (
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
from .connection import Connection, StaleConnection
from .decision import Decision
from .discovery import socket_to_use
from .errors import AllowdError, ProtocolError, TimedOut, Unavailable
from .pool import Pool
from .process import PerProcess, Process, not_asked
from .wire import Reply

T = TypeVar("T")


class Client:
    """Asks the allowd agent of this host.

    Each call has one deadline over connecting, writing and reading, and is never sent twice if it
    may have been charged. A call never waits for an agent to come back: it connects again, within
    its own deadline, when there is no connection. After three time-outs in a row calls fail at once
    for a second.

    When the agent cannot decide, ``fail`` does: ``"open"`` allows, ``"closed"`` refuses with the
    verdict ``unavailable``; either way ``Decision.degraded`` is True.

    Threads: share one client. Each call borrows a connection of its own, so callers do not wait for
    each other; up to ``max_idle`` connections are kept for the next calls.
    Forks: safe. A child closes what it inherited at its first call and opens its own connections.
    Ownership: close it (or use ``with``) to close its connections.
    Units: timeouts are seconds.
    """

    def __init__(
        self,
        socket_path: Union[str, "os.PathLike[str]", None] = None,
        timeout: float = 0.05,
        fail: str = "open",
        *,
        max_idle: int = 8,
        breaker: Optional[Breaker] = None,
    ) -> None:
        """Does no I/O.

        ``socket_path``: by default ``$ALLOWD_SOCKET``, else the first of the usual places that
        exists, looked up at each connect. ``breaker``: a pattern for the client's own.
        """
        self._socket_path = None if socket_path is None else os.fspath(socket_path)
        self._timeout = checked_timeout(timeout)
        self._fail = checked_policy(fail)
        self._max_idle = max_idle
        self._breaker = Breaker() if breaker is None else breaker
        self._closed = False
        self._processes = PerProcess(self._new_process)

    # -- Decisions -----------------------------------------------------------------------------

    def allow(
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
        return self._decide_one("allow", limit, key, cost, timeout, fail)

    def peek(
        self,
        limit: Limit,
        key: Key,
        cost: int = 1,
        *,
        timeout: Optional[float] = None,
        fail: Optional[str] = None,
    ) -> Decision:
        """What ``allow`` would answer now; charges nothing. Errors as for ``allow``."""
        return self._decide_one("peek", limit, key, cost, timeout, fail)

    def refund(
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
        return self._decide_one("refund", limit, key, cost, timeout, fail)

    def allow_batch(
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
        answers = self._ask(batch_call(items), timeout)
        return self._here().settle_batch(answers, policy)

    def allow_many(
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
        answers = self._ask(many_call(wanted, mode), timeout)
        return self._here().settle_many(answers, policy, len(wanted))

    # -- Questions about the agent -------------------------------------------------------------

    def ping(self, *, timeout: Optional[float] = None) -> bool:
        """True if the agent answers. Errors: Unavailable, TimedOut, AgentError."""
        return only_answer(self._ask(ping_call(), timeout))

    def info(self, *, timeout: Optional[float] = None) -> Dict[str, Any]:
        """Version, features, limits and so on, as the agent tells it. Errors as for ``ping``."""
        return only_answer(self._ask(map_call("info"), timeout))

    def stats(self, *, timeout: Optional[float] = None) -> Dict[str, Any]:
        """The agent's counters. Errors as for ``ping``."""
        return only_answer(self._ask(map_call("stats"), timeout))

    @property
    def degraded_total(self) -> int:
        """How many decisions the fail policy has made in this process."""
        return self._here().degraded_total

    # -- Life ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes idle connections, and those in use when their calls end. Twice is fine."""
        self._here().pool.close()
        self._closed = True

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # -- Inside --------------------------------------------------------------------------------

    def _decide_one(
        self,
        method: str,
        limit: Limit,
        key: Key,
        cost: int,
        timeout: Optional[float],
        fail: Optional[str],
    ) -> Decision:
        policy = self._policy(fail)
        answers = self._ask(decision_call(method, limit, key, cost), timeout)
        return self._here().settle(answers[0], policy)

    def _ask(self, call: Call[T], timeout: Optional[float]) -> List[Union[T, AllowdError]]:
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
            answers = self._ask_agent(call, here.pool, deadline)
            timed_out = any(isinstance(answer, TimedOut) for answer in answers)
            outcome = Outcome.TIMED_OUT if timed_out else Outcome.PROMPT
        finally:
            here.breaker.record(ticket, outcome)
        return answers

    def _ask_agent(self, call: Call[T], pool: Pool, deadline: float) -> List[Union[T, AllowdError]]:
        try:
            connection = None if call.is_large else pool.take_idle()
            if connection is not None:
                try:
                    return self._ask_on(connection, call, pool, deadline)
                except StaleConnection:
                    # Not a byte was accepted, so asking again cannot charge twice. Once only.
                    pool.drop_idle()
            return self._ask_on(pool.take_new(call.max_reply), call, pool, deadline)
        except Unavailable as error:
            return call.failed(error)

    def _ask_on(
        self, connection: Connection, call: Call[T], pool: Pool, deadline: float
    ) -> List[Union[T, AllowdError]]:
        try:
            msgids = connection.new_msgids(len(call.requests))
            data = call.encode(msgids, deadline - time.monotonic())
            replies: Dict[int, Reply] = {}
            failure: AllowdError = ProtocolError("no reply")
            try:
                connection.exchange(data, msgids, replies, deadline)
            except StaleConnection:
                raise
            except Unavailable as error:
                failure = error
            answers: List[Union[T, AllowdError]] = []
            for msgid in msgids:
                reply = replies.get(msgid)
                answer = failure if reply is None else call.answer(reply)
                if isinstance(answer, ProtocolError):
                    connection.usable = False
                answers.append(answer)
            return answers
        finally:
            pool.give_back(connection)

    def _policy(self, fail: Optional[str]) -> str:
        return self._fail if fail is None else checked_policy(fail)

    def _here(self) -> "_Process":
        return self._processes.here()

    def _new_process(self) -> "_Process":
        return _Process(self._breaker.fresh(), Pool(self._connect, self._max_idle))

    def _connect(self, max_reply: int) -> Connection:
        return Connection.open(socket_to_use(self._socket_path), max_reply)


class _Process(Process):
    def __init__(self, breaker: Breaker, pool: Pool) -> None:
        super().__init__(breaker)
        self.pool = pool

    def let_go(self) -> None:
        self.pool.drop_inherited()
