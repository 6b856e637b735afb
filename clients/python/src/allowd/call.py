# SPDX-License-Identifier: MIT
"""What is asked, and how its answer is read: the same whether the caller's thread waits or its task does."""

from __future__ import annotations

import math
from typing import (
    Any,
    Callable,
    Dict,
    Generic,
    Iterable,
    List,
    Mapping,
    NoReturn,
    Sequence,
    Tuple,
    TypeVar,
    Union,
)

from .decision import Decision
from .errors import AllowdError, ProtocolError
from .wire import (
    MAX_LARGE_REPLY,
    MAX_REPLY,
    Reply,
    Request,
    read_decision,
    read_decisions,
    read_error,
    read_map,
    read_pong,
)

Limit = Union[str, Mapping[str, Any]]
"""A configured name, or an inline limit such as ``{"name": "checkout", "rate": "100/s", "burst": 200}``."""
Key = Union[str, bytes]

MAX_BATCH = 1024
"""Items in one ``allow_batch``."""
MAX_MANY = 256
"""Items in one ``allow_many``."""

_LARGEST_MARGIN_US = 5000

T = TypeVar("T")


class Call(Generic[T]):
    """Requests that share a write and a deadline, and how to read their results."""

    def __init__(self, requests: List[Request], read: Callable[[Any], T], *, is_large: bool = False) -> None:
        self.requests = requests
        self.is_large = is_large
        self.max_reply = MAX_LARGE_REPLY if is_large else MAX_REPLY
        self._read = read

    def encode(self, msgids: List[int], left: float) -> bytes:
        """The requests under these ids. ``left``: the seconds until the deadline."""
        deadline_us = deadline_for_agent(left)
        return b"".join([request.encode(msgid, deadline_us) for request, msgid in zip(self.requests, msgids)])

    def answer(self, reply: Reply) -> Union[T, AllowdError]:
        """What the reply says; a ProtocolError if it is none to this question."""
        try:
            return self._read(reply.result) if reply.error is None else read_error(reply.error)
        except ProtocolError as error:
            return error

    def failed(self, error: AllowdError) -> List[Union[T, AllowdError]]:
        return [error] * len(self.requests)


def decision_call(method: str, limit: Limit, key: Key, cost: int) -> Call[Decision]:
    """Errors: TypeError, ValueError or AgentError ``too_large`` for what cannot be sent."""
    return Call([_decision_request(method, limit, key, cost)], read_decision)


def batch_call(items: Iterable[Tuple[Limit, Key, int]]) -> Call[Decision]:
    """Errors as for ``decision_call``; ValueError for more than MAX_BATCH items."""
    requests = [_decision_request("allow", *item) for item in items]
    if len(requests) > MAX_BATCH:
        raise ValueError(f"at most {MAX_BATCH} items in one batch, got {len(requests)}")
    return Call(requests, read_decision)


def many_call(items: Sequence[Tuple[Limit, Key, int]], mode: str) -> Call[List[Decision]]:
    """One request for all items, if there are any. Errors as for ``decision_call``; ValueError for more than
    MAX_MANY items or another mode."""
    if mode not in ("each", "all"):
        raise ValueError(f'mode must be "each" or "all", not {mode!r}')
    if len(items) > MAX_MANY:
        raise ValueError(f"at most {MAX_MANY} items in one allow_many, got {len(items)}")
    subjects = [_subject(*item) for item in items]
    requests = [Request("allow_many", [subjects, mode], takes_deadline=True)] if subjects else []
    return Call(requests, lambda result: read_decisions(result, len(subjects)))


def ping_call() -> Call[bool]:
    return Call([Request("ping")], read_pong)


def map_call(method: str) -> Call[Dict[str, Any]]:
    """``info`` or ``stats``."""
    return Call([Request(method)], read_map, is_large=True)


def _decision_request(method: str, limit: Limit, key: Key, cost: int = 1) -> Request:
    return Request(method, _subject(limit, key, cost), takes_deadline=method == "allow")


def _subject(limit: Limit, key: Key, cost: int = 1) -> List[Any]:
    if isinstance(limit, Mapping):
        limit = dict(limit)
    elif not isinstance(limit, str):
        _refuse("limit", "a str or a mapping", limit)
    if not isinstance(key, (str, bytes)):
        _refuse("key", "a str or bytes", key)
    if not isinstance(cost, int) or isinstance(cost, bool):
        _refuse("cost", "an int", cost)
    return [limit, key, cost]


def _refuse(name: str, wanted: str, value: object) -> NoReturn:
    raise TypeError(f"{name} must be {wanted}, not {type(value).__name__}")


def deadline_for_agent(left: float) -> int:
    """What the agent may take, in microseconds: what is left, less a margin for the way back."""
    left_us = int(left * 1e6)
    return max(1, left_us - min(left_us // 10, _LARGEST_MARGIN_US))


def only_answer(answers: List[Union[T, AllowdError]]) -> T:
    """The answer to a call of one request that has no fail policy."""
    answer = answers[0]
    if isinstance(answer, AllowdError):
        raise answer
    return answer


def checked_timeout(timeout: float) -> float:
    if not 0 < timeout < math.inf:
        raise ValueError(f"timeout must be more than 0 seconds and finite, not {timeout!r}")
    return timeout


def checked_policy(fail: str) -> str:
    if fail not in ("open", "closed"):
        raise ValueError(f'fail must be "open" or "closed", not {fail!r}')
    return fail
