# SPDX-License-Identifier: MIT
"""The client: deadlines, fail policy, and one method per question."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from typing import (
    Any,
    Callable,
    Dict,
    Generic,
    Iterable,
    List,
    Mapping,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)

from .breaker import Breaker, Outcome
from .connection import Connection, StaleConnection
from .decision import Decision, allowed_by_policy, refused_by_policy
from .discovery import find_socket
from .errors import AgentError, AllowdError, ProtocolError, TimedOut, Unavailable
from .pool import Pool
from .wire import (
    MAX_LARGE_REPLY,
    MAX_REPLY,
    Reply,
    Request,
    read_decision,
    read_error,
    read_map,
    read_pong,
)

Limit = Union[str, Mapping[str, Any]]
"""A configured name, or an inline limit such as ``{"name": "checkout", "rate": "100/s", "burst": 200}``."""
Key = Union[str, bytes]

MAX_BATCH = 1024
"""Items in one ``allow_batch``."""

_LARGEST_MARGIN_US = 5000
_log = logging.getLogger("allowd")

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
        self._timeout = _checked_timeout(timeout)
        self._fail = _checked_policy(fail)
        self._max_idle = max_idle
        self._breaker = Breaker() if breaker is None else breaker
        self._closed = False
        self._processes: Dict[int, _Process] = {}
        self._here()

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
        requests = [_decision_request("allow", *item) for item in items]
        if len(requests) > MAX_BATCH:
            raise ValueError(f"at most {MAX_BATCH} items in one batch, got {len(requests)}")
        call = _Call(requests, read_decision)
        answers = self._ask(call, timeout)
        decisions: List[Optional[Decision]] = []
        first_error: Optional[AgentError] = None
        for index, answer in enumerate(answers):
            if isinstance(answer, AgentError) and not isinstance(answer, Unavailable):
                decisions.append(None)
                if first_error is None:
                    first_error = answer
                    first_error.index = index
            else:
                decisions.append(self._settle(answer, policy))
        if first_error is not None:
            first_error.decisions = decisions
            raise first_error
        return [decision for decision in decisions if decision is not None]

    # -- Questions about the agent -------------------------------------------------------------

    def ping(self, *, timeout: Optional[float] = None) -> bool:
        """True if the agent answers. Errors: Unavailable, TimedOut, AgentError."""
        return self._ask_one(_Call([Request("ping")], read_pong), timeout)

    def info(self, *, timeout: Optional[float] = None) -> Dict[str, Any]:
        """Version, features, limits and so on, as the agent tells it. Errors as for ``ping``."""
        return self._ask_one(_Call([Request("info")], read_map, is_large=True), timeout)

    def stats(self, *, timeout: Optional[float] = None) -> Dict[str, Any]:
        """The agent's counters. Errors as for ``ping``."""
        return self._ask_one(_Call([Request("stats")], read_map, is_large=True), timeout)

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
        call = _Call([_decision_request(method, limit, key, cost)], read_decision)
        return self._settle(self._ask(call, timeout)[0], policy)

    def _settle(self, answer: Union[Decision, AllowdError], policy: str) -> Decision:
        """The one place that fails open or closed."""
        here = self._here()
        if isinstance(answer, Decision):
            here.note_answer()
            return answer
        if not isinstance(answer, Unavailable):
            here.note_answer()
            raise answer
        here.note_degraded(answer)
        if policy == "open":
            return allowed_by_policy()
        seconds = here.breaker.retry_in() or here.breaker.open_for
        return refused_by_policy(max(1, math.ceil(seconds * 1e6)))

    def _ask_one(self, call: "_Call[T]", timeout: Optional[float]) -> T:
        answer = self._ask(call, timeout)[0]
        if isinstance(answer, AllowdError):
            raise answer
        return answer

    def _ask(self, call: "_Call[T]", timeout: Optional[float]) -> Sequence[Union[T, AllowdError]]:
        """An answer or an error for each request of the call, in order."""
        if self._closed:
            raise AllowdError("the client is closed")
        deadline = time.monotonic() + (self._timeout if timeout is None else _checked_timeout(timeout))
        if not call.requests:
            return []
        here = self._here()
        ticket = here.breaker.admit()
        if ticket is None:
            return call.failed(
                Unavailable("the agent timed out too often in a row and is not asked for a moment")
            )
        outcome = Outcome.WITHDRAWN
        try:
            answers = self._ask_agent(call, here.pool, deadline)
            timed_out = any(isinstance(answer, TimedOut) for answer in answers)
            outcome = Outcome.TIMED_OUT if timed_out else Outcome.PROMPT
        finally:
            here.breaker.record(ticket, outcome)
        return answers

    def _ask_agent(self, call: "_Call[T]", pool: Pool, deadline: float) -> Sequence[Union[T, AllowdError]]:
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
        self, connection: Connection, call: "_Call[T]", pool: Pool, deadline: float
    ) -> Sequence[Union[T, AllowdError]]:
        try:
            msgids = connection.new_msgids(len(call.requests))
            deadline_us = _deadline_for_agent(deadline - time.monotonic())
            data = b"".join(
                [request.encode(msgid, deadline_us) for request, msgid in zip(call.requests, msgids)]
            )
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
        return self._fail if fail is None else _checked_policy(fail)

    def _here(self) -> "_Process":
        """What this process owns. After a fork the child lets go of its parent's first."""
        pid = os.getpid()
        here = self._processes.get(pid)
        if here is not None:
            return here
        # No lock: one inherited from the parent may be held for ever. setdefault is atomic.
        fresh = _Process(Pool(self._connect, self._max_idle), self._breaker.fresh())
        here = self._processes.setdefault(pid, fresh)
        if here is fresh:
            for other in [known for known in self._processes if known != pid]:
                self._processes.pop(other).pool.drop_inherited()
        return here

    def _connect(self, max_reply: int) -> Connection:
        path = self._socket_path
        if path is None:
            path, looked_at = find_socket()
            if path is None:
                raise Unavailable(f"no agent's socket at {', '.join(looked_at)}")
        return Connection.open(path, max_reply)


class _Process:
    """What belongs to one process and must not cross a fork: connections, locks, counts."""

    def __init__(self, pool: Pool, breaker: Breaker) -> None:
        self.pool = pool
        self.breaker = breaker
        self.degraded_total = 0
        self._is_degraded = False
        self._lock = threading.Lock()

    def note_degraded(self, reason: Unavailable) -> None:
        with self._lock:
            self.degraded_total += 1
            is_news, self._is_degraded = not self._is_degraded, True
        if is_news:
            _log.warning("the agent cannot be asked, the fail policy decides: %s", reason)

    def note_answer(self) -> None:
        if not self._is_degraded:
            return
        with self._lock:
            is_news, self._is_degraded = self._is_degraded, False
        if is_news:
            _log.info("the agent answers again, after %d degraded decisions", self.degraded_total)


class _Call(Generic[T]):
    """Requests that share a deadline, and how to read their results."""

    def __init__(self, requests: List[Request], read: Callable[[Any], T], *, is_large: bool = False) -> None:
        self.requests = requests
        self.is_large = is_large
        self.max_reply = MAX_LARGE_REPLY if is_large else MAX_REPLY
        self._read = read

    def answer(self, reply: Reply) -> Union[T, AllowdError]:
        try:
            return self._read(reply.result) if reply.error is None else read_error(reply.error)
        except ProtocolError as error:
            return error

    def failed(self, error: AllowdError) -> Sequence[Union[T, AllowdError]]:
        return [error] * len(self.requests)


def _decision_request(method: str, limit: Limit, key: Key, cost: int = 1) -> Request:
    if isinstance(limit, Mapping):
        limit = dict(limit)
    elif not isinstance(limit, str):
        _refuse("limit", "a str or a mapping", limit)
    if not isinstance(key, (str, bytes)):
        _refuse("key", "a str or bytes", key)
    if not isinstance(cost, int) or isinstance(cost, bool):
        _refuse("cost", "an int", cost)
    return Request(method, [limit, key, cost], takes_deadline=method == "allow")


def _refuse(name: str, wanted: str, value: object) -> NoReturn:
    raise TypeError(f"{name} must be {wanted}, not {type(value).__name__}")


def _deadline_for_agent(left: float) -> int:
    """What the agent may take, in microseconds: what is left, less a margin for the way back."""
    left_us = int(left * 1e6)
    return max(1, left_us - min(left_us // 10, _LARGEST_MARGIN_US))


def _checked_timeout(timeout: float) -> float:
    if not 0 < timeout < math.inf:
        raise ValueError(f"timeout must be more than 0 seconds and finite, not {timeout!r}")
    return timeout


def _checked_policy(fail: str) -> str:
    if fail not in ("open", "closed"):
        raise ValueError(f'fail must be "open" or "closed", not {fail!r}')
    return fail
