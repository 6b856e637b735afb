# SPDX-License-Identifier: MIT
"""The connections of one client in one process."""

from __future__ import annotations

import threading
from typing import Callable, List, Optional, Set

from .connection import Connection
from .wire import MAX_REPLY


class Pool:
    """Lends each caller a connection of its own; the one returned last is lent first.

    Ownership: owns every connection it opened until it is given back or closed.
    Threads: safe to share. The lock is never held over I/O that can wait.
    """

    def __init__(self, connect: Callable[[int], Connection], max_idle: int) -> None:
        self._connect = connect
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._idle: List[Connection] = []
        self._open: Set[Connection] = set()
        self._closed = False

    def take_idle(self) -> Optional[Connection]:
        """A connection that was used before and may have died since, or None."""
        with self._lock:
            return self._idle.pop() if self._idle else None

    def take_new(self, max_reply: int = MAX_REPLY) -> Connection:
        """A new connection, for replies of at most ``max_reply`` bytes.

        Errors: TimedOut if the agent's backlog is full, Unavailable without an agent.
        """
        connection = self._connect(max_reply)
        with self._lock:
            self._open.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keeps the connection for the next caller, or closes it if it cannot be used again."""
        with self._lock:
            if connection.usable and not self._closed and len(self._idle) < self._max_idle:
                self._idle.append(connection)
                return
            self._open.discard(connection)
        connection.close()

    def drop_idle(self) -> None:
        """Closes what nobody uses now: one stale connection means an agent that has restarted."""
        with self._lock:
            dropped, self._idle = self._idle, []
            self._open.difference_update(dropped)
        for connection in dropped:
            connection.close()

    def close(self) -> None:
        """Closes idle connections now, and borrowed ones when they are given back."""
        with self._lock:
            self._closed = True
        self.drop_idle()

    def drop_inherited(self) -> None:
        """In a forked child: closes this process's copies of all connections, lent ones too.

        Takes no lock, since a thread that does not exist here may hold it for ever.
        """
        for connection in self._open:
            connection.close()
        self._open = set()
        self._idle = []
