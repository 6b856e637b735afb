# SPDX-License-Identifier: MIT
"""Child processes that cannot outlive the tests, and waiting for what they do.

Ownership  Whoever starts a child ends it, by its pid. Should this process be killed first, the kernel ends the
           child: it is asked to when the child starts.
Threads    Start children from the main thread: the kernel ties them to the thread that did.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1

# What would send a child's sockets or its log somewhere else.
_HIDDEN_VARIABLES = (
    "ALLOWD_SOCKET",
    "ALLOWD_ADMIN_SOCKET",
    "XDG_RUNTIME_DIR",
    "NOTIFY_SOCKET",
    "JOURNAL_STREAM",
)


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _HIDDEN_VARIABLES}
    return {**kept, **(extra or {})}


def start(
    command: Sequence[str | Path], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Starts a child whose stdout and stderr are appended to `log`."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=clean_environment(environment),
            preexec_fn=_die_with_parent,
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a child for certain, also a stopped one. Twice is fine."""
    if process.poll() is None:
        process.kill()
    process.wait(10)


def wait_until(condition: Callable[[], object], what: str, within: float = 15.0) -> None:
    """Returns as soon as `condition` holds; fails when it does not within that many seconds."""
    give_up = time.monotonic() + within
    while not condition():
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {within:g} s: {what}")
        time.sleep(0.02)
