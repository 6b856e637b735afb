# SPDX-License-Identifier: MIT
"""The asyncio client behind the blocking one's methods, so that one test holds for both."""

from __future__ import annotations

import asyncio
import threading

from fake_agent import PATIENCE

from allowd.aio import AsyncClient


class OnALoop:
    """An AsyncClient on an event loop of its own, in a thread of its own. Any thread may call."""

    def __init__(self, socket_path=None, **options) -> None:
        self.asynchronous = AsyncClient(socket_path, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __getattr__(self, name):
        def ask(*args, **kwargs):
            return self.run(getattr(self.asynchronous, name)(*args, **kwargs))

        return ask

    def run(self, awaitable):
        return asyncio.run_coroutine_threadsafe(awaitable, self._loop).result(2 * PATIENCE)

    @property
    def degraded_total(self) -> int:
        return self.asynchronous.degraded_total

    def __enter__(self) -> "OnALoop":
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Closes the client, and fails if it left anything behind."""
        self.close()
        left = self.run(_tasks_besides_this())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        watched = [key.fd for key in self._loop._selector.get_map().values()]
        assert watched == [self._loop._ssock.fileno()]
        self._loop.close()
        assert not left


async def _tasks_besides_this():
    return asyncio.all_tasks() - {asyncio.current_task()}
