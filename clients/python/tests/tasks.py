# SPDX-License-Identifier: MIT
"""What tests of the asyncio client do with its tasks and connections."""

from __future__ import annotations

import asyncio
import time

import pytest
from fake_agent import PATIENCE


async def cancel(task) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def in_time(condition) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, "it did not happen"
        await asyncio.sleep(0.002)


def shared_connections(client):
    return [connections.shared for connections in client._here()._loops.values()]
