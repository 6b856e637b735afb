# SPDX-License-Identifier: MIT
"""What a client has once in each process, and must not carry across a fork."""

from __future__ import annotations

import logging
import math
import os
import threading
from typing import Callable, Dict, Generic, List, Optional, Sequence, TypeVar, Union

from .breaker import Breaker
from .decision import Decision, allowed_by_policy, refused_by_policy
from .errors import AgentError, AllowdError, Unavailable

_log = logging.getLogger("allowd")


class Process:
    """The breaker, and the fail policy with what is counted and logged of it.

    ``let_go`` is called in a forked child on its parent's: close copies of connections, take no lock.
    Threads: safe to share.
    """

    def __init__(self, breaker: Breaker) -> None:
        self.breaker = breaker
        self.degraded_total = 0
        self._is_degraded = False
        self._lock = threading.Lock()

    def let_go(self) -> None:
        raise NotImplementedError

    def settle(self, answer: Union[Decision, AllowdError], policy: str) -> Decision:
        """The one place that fails open or closed. Raises what is the caller's mistake."""
        if isinstance(answer, Decision):
            self._note_answer()
            return answer
        if not isinstance(answer, Unavailable):
            self._note_answer()
            raise answer
        self._note_degraded(answer)
        if policy == "open":
            return allowed_by_policy()
        seconds = self.breaker.retry_in() or self.breaker.open_for
        return refused_by_policy(max(1, math.ceil(seconds * 1e6)))

    def settle_batch(self, answers: Sequence[Union[Decision, AllowdError]], policy: str) -> List[Decision]:
        """Each by itself. Raises the first of the caller's mistakes, with what the other items got."""
        decisions: List[Optional[Decision]] = []
        first_error: Optional[AgentError] = None
        for index, answer in enumerate(answers):
            if isinstance(answer, AgentError) and not isinstance(answer, Unavailable):
                decisions.append(None)
                if first_error is None:
                    first_error = answer
                    first_error.index = index
            else:
                decisions.append(self.settle(answer, policy))
        if first_error is not None:
            first_error.decisions = decisions
            raise first_error
        return [decision for decision in decisions if decision is not None]

    def settle_many(
        self, answers: Sequence[Union[List[Decision], AllowdError]], policy: str, count: int
    ) -> List[Decision]:
        """All by the one answer to their request; without a request there are none."""
        for answer in answers:
            if isinstance(answer, list):
                self._note_answer()
                return answer
            return [self.settle(answer, policy) for _ in range(count)]
        return []

    def _note_degraded(self, reason: Unavailable) -> None:
        with self._lock:
            self.degraded_total += 1
            is_news, self._is_degraded = not self._is_degraded, True
        if is_news:
            _log.warning("the agent cannot be asked, the fail policy decides: %s", reason)

    def _note_answer(self) -> None:
        if not self._is_degraded:
            return
        with self._lock:
            is_news, self._is_degraded = self._is_degraded, False
        if is_news:
            _log.info("the agent answers again, after %d degraded decisions", self.degraded_total)


P = TypeVar("P", bound=Process)


class PerProcess(Generic[P]):
    """Gives each process its own P, made when it first asks."""

    def __init__(self, make: Callable[[], P]) -> None:
        self._make = make
        self._known: Dict[int, P] = {}
        self.here()

    def here(self) -> P:
        """What this process owns. After a fork the child lets go of its parent's first."""
        pid = os.getpid()
        here = self._known.get(pid)
        if here is not None:
            return here
        # No lock: one inherited from the parent may be held for ever. setdefault is atomic.
        fresh = self._make()
        here = self._known.setdefault(pid, fresh)
        if here is fresh:
            for other in [known for known in self._known if known != pid]:
                self._known.pop(other).let_go()
        return here


def not_asked() -> Unavailable:
    """The failure of a call that the breaker does not admit."""
    return Unavailable("the agent timed out too often in a row and is not asked for a moment")
