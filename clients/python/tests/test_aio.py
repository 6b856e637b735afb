# SPDX-License-Identifier: MIT
"""What the asyncio client does besides: one connection for many tasks, on as many loops as there are.

What both clients do is tested with both, in the other modules.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading

import pytest
from expectations import is_degraded
from fake_agent import LIMITED, OK, PATIENCE, answers, answers_when_released
from tasks import in_time

import allowd
from allowd.aio import AsyncClient
from allowd.aio.connection import AsyncConnection


def test_it_asks_and_closes(agent, socket_path, eventually):
    fake = agent(answers(LIMITED))

    async def main():
        async with AsyncClient(socket_path, timeout=PATIENCE) as client:
            assert await client.allow("api", "tenant-42") == allowd.Decision(*LIMITED)
            assert len(asyncio.all_tasks()) == 1
        with pytest.raises(allowd.AllowdError, match="closed"):
            await client.allow("api", "tenant-42")
        await client.close()

    asyncio.run(main())
    eventually(lambda: fake.client_closed == [0])


def test_it_is_made_without_a_loop_and_without_io():
    AsyncClient("/nowhere/allowd.sock")


def echo_in_reverse(peer):
    """Answers each read's requests in reverse order, with the cost as what remains."""
    while True:
        request = peer.request()
        if request is None:
            return
        requests = [request]
        peer.socket.setblocking(False)
        try:
            while True:
                requests.append(peer.request())
        except BlockingIOError:
            peer.socket.settimeout(PATIENCE)
        for request in reversed([request for request in requests if request]):
            peer.reply(request, [True, 10, request[3][2]] + OK[3:])


def test_many_tasks_share_one_connection_and_get_their_own_answers(agent, socket_path):
    fake = agent(echo_in_reverse)

    async def main():
        async with AsyncClient(socket_path, timeout=PATIENCE) as client:
            for _ in range(5):
                decisions = await asyncio.gather(*[client.allow("api", "k", cost) for cost in range(300)])
                assert [decision.remaining for decision in decisions] == list(range(300))

    asyncio.run(main())
    assert fake.connections == 1


def test_a_slow_answer_does_not_hold_up_another_call(agent, socket_path):
    def script(peer):
        slow = peer.request()
        peer.reply(peer.request(), OK)
        assert peer.agent.released.wait(PATIENCE)
        peer.reply(slow, LIMITED)
        peer.wait_for_close()

    fake = agent(script)

    async def main():
        async with AsyncClient(socket_path, timeout=PATIENCE) as client:
            slow = asyncio.ensure_future(client.allow("api", "slow"))
            await asyncio.sleep(0)
            assert await client.allow("api", "fast") == allowd.Decision(*OK)
            assert not slow.done()
            fake.released.set()
            assert await slow == allowd.Decision(*LIMITED)

    asyncio.run(main())


# -- Loops


def test_a_second_loop_after_the_first_opens_its_own_connection(agent, socket_path, eventually):
    fake = agent(answers(OK), answers(LIMITED))
    client = AsyncClient(socket_path, timeout=PATIENCE)

    async def ask():
        return await client.allow("api", "k")

    assert asyncio.run(ask()) == allowd.Decision(*OK)
    assert asyncio.run(ask()) == allowd.Decision(*LIMITED)
    eventually(lambda: fake.client_closed == [0])
    asyncio.run(client.close())
    eventually(lambda: fake.client_closed == [0, 1])
    gc.collect()  # a socket that was left open would be told of here


def test_loops_in_several_threads_share_a_client(agent, socket_path, eventually):
    fake = agent(echo_in_reverse)
    client = AsyncClient(socket_path, timeout=PATIENCE)
    all_there = threading.Barrier(4)
    closed = threading.Event()
    results = []

    async def ask():
        all_there.wait(PATIENCE)
        decisions = await asyncio.gather(*[client.allow("api", "k", cost) for cost in range(100)])
        results.append([decision.remaining for decision in decisions])
        all_there.wait(PATIENCE)
        await in_time(closed.is_set)
        await in_time(lambda: len(fake.client_closed) == 4)

    threads = [threading.Thread(target=lambda: asyncio.run(ask())) for _ in range(3)]
    for thread in threads:
        thread.start()

    async def ask_and_close():
        await client.allow("api", "k")
        all_there.wait(PATIENCE)
        all_there.wait(PATIENCE)
        await client.close()

    asyncio.run(ask_and_close())
    closed.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert results == [list(range(100))] * 3
    assert fake.connections == 4


def test_close_during_a_call_lets_it_end_and_then_closes_its_connection(agent, socket_path, eventually):
    fake = agent(answers_when_released())

    async def main():
        client = AsyncClient(socket_path, timeout=PATIENCE)
        task = asyncio.ensure_future(client.allow("api", "k"))
        await in_time(lambda: len(fake.requests) == 1)
        await client.close()
        fake.released.set()
        assert await task == allowd.Decision(*OK)
        await in_time(lambda: fake.client_closed == [0])

    asyncio.run(main())


# -- Besides


def test_a_loop_that_takes_no_connection_leaves_it_to_the_policy(agent, socket_path, monkeypatch):
    agent(answers())

    async def main():
        def refuse(*_):
            raise PermissionError("no")

        monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuse)
        async with AsyncClient(socket_path, timeout=PATIENCE) as client:
            assert is_degraded(await client.allow("api", "k"))

    asyncio.run(main())


def test_msgids_go_round_and_pass_over_those_abandoned_or_in_flight():
    async def main():
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        connection = AsyncConnection(ours, asyncio.get_running_loop())
        connection._msgid = 2**32 - 2
        connection._abandoned = {0, 2}
        connection._in_flight = {3: None}
        assert connection._new_msgids(3) == [2**32 - 1, 1, 4]
        connection._in_flight = {}
        connection.close()
        theirs.close()

    asyncio.run(main())
