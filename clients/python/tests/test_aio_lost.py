# SPDX-License-Identifier: MIT
"""The asyncio client when its connection is lost, to the agent or to a fork."""

from __future__ import annotations

import asyncio
import os
import signal
import socket

import pytest
from expectations import is_degraded
from fake_agent import LIMITED, OK, PATIENCE, answers, answers_once, answers_when_released
from tasks import in_time, shared_connections
from test_processes import in_a_child, is_open

import allowd
from allowd.aio import AsyncClient
from allowd.aio.connection import AsyncConnection


@pytest.fixture
def overlooks_the_end(monkeypatch):
    """The loop does not tell the client that the peer is gone, so that the next call writes to it."""

    def on_readable(self):
        try:
            self._receive()
        except allowd.Unavailable:
            self._loop.remove_reader(self._fd)

    monkeypatch.setattr(AsyncConnection, "_on_readable", on_readable)


def test_a_request_of_which_no_byte_was_accepted_is_sent_again_once(agent, socket_path, overlooks_the_end):
    fake = agent(answers_once, answers(LIMITED))

    async def main():
        async with AsyncClient(socket_path, timeout=PATIENCE) as client:
            assert await client.allow("api", "first") == allowd.Decision(*OK)
            [connection] = shared_connections(client)
            await in_time(lambda: is_ended(connection._socket))
            decisions = await asyncio.gather(*[client.allow("api", "again") for _ in range(5)])
            assert decisions == [allowd.Decision(*LIMITED)] * 5

    asyncio.run(main())
    assert [request[3][1] for request in fake.requests] == ["first"] + ["again"] * 5
    assert fake.connections == 2


def is_ended(sock: socket.socket) -> bool:
    try:
        return sock.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False


def test_requests_that_lay_in_the_queue_when_the_connection_ended_are_sent_again(agent, socket_path):
    def reads_little(peer):
        peer.socket.recv(100)
        assert peer.agent.released.wait(PATIENCE)

    fake = agent(reads_little, answers())

    async def main():
        async with AsyncClient(socket_path, timeout=PATIENCE) as client:
            large = asyncio.ensure_future(client.allow_batch([("api", "k" * 8000, 1)] * 1000))
            await asyncio.sleep(0)
            queued = asyncio.ensure_future(client.allow("api", "queued"))
            await asyncio.sleep(0.05)
            fake.released.set()
            assert all(is_degraded(decision) for decision in await large)
            assert await queued == allowd.Decision(*OK)

    asyncio.run(main())
    assert [request[3][1] for request in fake.requests] == ["queued"]


def test_calls_in_flight_when_the_agent_leaves_are_not_sent_again(agent, socket_path):
    def leave(peer):
        for _ in range(3):
            peer.request()

    fake = agent(leave, answers())

    async def main():
        async with AsyncClient(socket_path, timeout=PATIENCE) as client:
            decisions = await asyncio.gather(*[client.allow("api", "k") for _ in range(3)])
            assert all(is_degraded(decision) for decision in decisions)
            assert not (await client.allow("api", "k")).degraded

    asyncio.run(main())
    assert len(fake.requests) == 4


# -- Processes


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
class TestFork:
    def test_a_child_opens_its_own_connection_and_leaves_the_parents_alone(
        self, agent, socket_path, eventually
    ):
        fake = agent(answers(OK), answers(LIMITED))
        client = AsyncClient(socket_path, timeout=PATIENCE)

        async def child():
            assert await client.allow("api", "child") == allowd.Decision(*LIMITED)
            await client.close()

        async def parent():
            assert await client.allow("api", "parent") == allowd.Decision(*OK)
            [connection] = shared_connections(client)
            inherited, inode = connection._fd, os.fstat(connection._fd).st_ino

            def run_child():
                asyncio.run(child())
                assert not is_open(inherited, inode)

            in_a_child(run_child)
            assert await client.allow("api", "parent") == allowd.Decision(*OK)
            await client.close()

        asyncio.run(parent())
        eventually(lambda: fake.client_closed == [1, 0])
        assert fake.connections == 2

    def test_a_fork_during_a_call_shares_neither_its_connection_nor_its_answer(self, agent, socket_path):
        fake = agent(answers_when_released(LIMITED), answers(OK))
        client = AsyncClient(socket_path, timeout=PATIENCE)

        async def child():
            assert await client.allow("api", "child") == allowd.Decision(*OK)

        async def parent():
            task = asyncio.ensure_future(client.allow("api", "parent"))
            await in_time(lambda: len(fake.requests) == 1)
            here = client._here()
            with here._loops_lock, here.breaker._lock, here._lock:
                in_a_child(lambda: asyncio.run(child()))
            fake.released.set()
            assert await task == allowd.Decision(*LIMITED)
            await client.close()

        asyncio.run(parent())


def test_a_restored_SIGPIPE_does_not_end_the_process(agent, socket_path, overlooks_the_end):
    fake = agent(answers_once)

    async def main():
        async with AsyncClient(socket_path, timeout=PATIENCE) as client:
            assert not (await client.allow("api", "k")).degraded
            [connection] = shared_connections(client)
            await in_time(lambda: is_ended(connection._socket))
            assert not (await client.allow("api", "k")).degraded

    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert fake.connections == 2
