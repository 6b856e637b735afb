# SPDX-License-Identifier: MIT
"""What several modules of tests expect, wait for, and inject."""

from __future__ import annotations

import os
import socket
import threading

from fake_agent import PATIENCE

import allowd

BRIEF = 0.2  # seconds; for calls that are meant to time out, after they were sent on a busy machine


def is_degraded(decision: allowd.Decision) -> bool:
    """By the fail policy "open", in every field."""
    return decision == allowd.Decision(True, 0, 0, 0, 0, "ok", "client", "", 0, 0, degraded=True)


class ManualClock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def wait_until_closed_by_peer(client: allowd.Client) -> None:
    [connection] = client._here().pool._idle
    with socket.socket(fileno=os.dup(connection._socket.fileno())) as watched:
        watched.settimeout(PATIENCE)
        assert watched.recv(1, socket.MSG_PEEK) == b""


def start_together(count, work):
    """Runs ``work(i)`` in ``count`` threads at once and gives their results."""
    barrier = threading.Barrier(count)
    results = [None] * count

    def run(i):
        barrier.wait(PATIENCE)
        results[i] = work(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return results
