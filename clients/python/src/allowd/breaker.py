# SPDX-License-Identifier: MIT
"""Stops asking an agent that only costs time."""

from __future__ import annotations

import threading
import time
from enum import Enum
from typing import Callable, Optional


class Outcome(Enum):
    """How an admitted call ended."""

    PROMPT = "prompt"
    """An answer, or a failure that cost no waiting (no agent, connection lost, garbage)."""
    TIMED_OUT = "timed out"
    """The deadline passed, or the agent's backlog was full."""
    WITHDRAWN = "withdrawn"
    """Interrupted by an exception from outside; says nothing about the agent."""


class Ticket:
    """Leave to make one call; hand it back with ``Breaker.record``."""

    __slots__ = ()


class Breaker:
    """Opens after ``threshold`` time-outs in a row, and then lets one probe through at a time.

    While it is open calls fail at once. When ``open_for`` seconds have passed, the next call is
    the probe: if it times out the breaker stays open for as long again, if it ends in any other
    way the breaker closes. Calls that were under way when it opened change nothing.

    Threads: safe to share. Units: seconds. ``clock`` is monotonic seconds, injectable for tests.
    """

    def __init__(
        self,
        threshold: int = 3,
        open_for: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if threshold < 1:
            raise ValueError("threshold must be at least 1")
        if not open_for > 0:
            raise ValueError("open_for must be more than 0 seconds")
        self.threshold = threshold
        self.open_for = open_for
        self._clock = clock
        self._lock = threading.Lock()
        self._row = 0
        self._open_until: Optional[float] = None
        self._probe: Optional[Ticket] = None

    def fresh(self) -> Breaker:
        """A closed breaker with the same settings and a lock of its own."""
        return Breaker(self.threshold, self.open_for, self._clock)

    def admit(self) -> Optional[Ticket]:
        """A ticket if the agent may be asked now, else None. Each ticket must be recorded once."""
        with self._lock:
            if self._open_until is None:
                return Ticket()
            if self._probe is not None or self._clock() < self._open_until:
                return None
            self._probe = Ticket()
            return self._probe

    def record(self, ticket: Ticket, outcome: Outcome) -> None:
        with self._lock:
            is_probe = ticket is self._probe
            if is_probe:
                self._probe = None
            if outcome is Outcome.WITHDRAWN:
                return
            if self._open_until is not None and not is_probe:
                return
            if outcome is Outcome.PROMPT:
                self._row = 0
                self._open_until = None
                return
            self._row += 1
            if is_probe or self._row >= self.threshold:
                self._open_until = self._clock() + self.open_for

    def retry_in(self) -> float:
        """Seconds until a probe may go; 0 if one may go now, or if the breaker is closed."""
        with self._lock:
            if self._open_until is None:
                return 0.0
            return max(0.0, self._open_until - self._clock())
