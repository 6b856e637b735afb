# SPDX-License-Identifier: MIT
"""A forked child with a pipe to it.

Whoever answers queries or makes them under a clock has a process of his own, so that what the scenario does
meanwhile takes no turns away from it.

Ownership  A Child ends its process by pid; should its owner be killed first, the kernel ends it.
Threads    Start children while the process has one thread.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_fork = multiprocessing.get_context("fork")
_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1
_STOP_SECONDS = 10.0


class ChildFailed(Exception):
    """The child ended with an exception, whose text this is."""


def _run(work: Callable[..., Any], parent: int, pipe: Connection, arguments: tuple[Any, ...]) -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What was made before the fork is never freed here: a collection that walked over it would stop this process.
    gc.collect()
    gc.freeze()
    try:
        outcome: Any = work(pipe, *arguments)
    except BaseException:
        outcome = ChildFailed(traceback.format_exc())
    pipe.send(outcome)


class Child:
    """Runs `work(pipe, *arguments)`, and gives what it returns to join()."""

    def __init__(self, work: Callable[..., Any], *arguments: Any) -> None:
        self.pipe, theirs = _fork.Pipe()
        self._process = _fork.Process(target=_run, args=(work, os.getpid(), theirs, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def receive(self, within: float) -> Any:
        """What it sends next; fails when that does not come in time, or is its failure."""
        if not self.pipe.poll(within):
            raise ChildFailed(f"nothing came within {within:g} s")
        try:
            received = self.pipe.recv()
        except EOFError:
            raise ChildFailed(f"it ended with code {self._process.exitcode}") from None
        if isinstance(received, ChildFailed):
            raise received
        return received

    def join(self, within: float = 60.0) -> Any:
        outcome = self.receive(within)
        self._process.join(_STOP_SECONDS)
        return outcome

    def close(self) -> None:
        """Ends it, whatever it does. Twice is fine."""
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        self.pipe.close()
