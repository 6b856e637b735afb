# SPDX-License-Identifier: MIT
"""Calls of the asyncio client that end early: cancelled, timed out, given up."""

from __future__ import annotations

import asyncio
import time

from expectations import BRIEF, is_degraded
from fake_agent import LIMITED, OK, PATIENCE, answers, reply_bytes, silent
from tasks import cancel, in_time, shared_connections

import allowd
from allowd.aio import AsyncClient
from allowd.aio.connection import AsyncConnection
from allowd.connection import MAX_ABANDONED


def test_a_cancelled_call_disturbs_no_other_and_shifts_no_answer(agent, socket_path):
    def script(peer):
        cancelled, other = peer.request(), peer.request()
        assert peer.agent.released.wait(PATIENCE)
        peer.reply(cancelled, LIMITED)
        peer.reply(other, OK)
        answers()(peer)

    fake = agent(script)

    async def main():
        async with AsyncClient(socket_path, timeout=PATIENCE, breaker=allowd.Breaker(threshold=1)) as client:
            task = asyncio.ensure_future(client.allow("api", "cancelled"))
            other = asyncio.ensure_future(client.allow("api", "other"))
            await in_time(lambda: len(fake.requests) == 2)
            await cancel(task)
            fake.released.set()
            assert await other == allowd.Decision(*OK)
            assert await client.allow("api", "next") == allowd.Decision(*OK)
            [connection] = shared_connections(client)
            assert not connection._abandoned and not connection._in_flight

    asyncio.run(main())
    assert fake.connections == 1


def test_a_call_cancelled_in_the_same_turn_as_its_answer_leaves_nothing(agent, socket_path):
    agent(answers())

    async def main():
        async with AsyncClient(socket_path, timeout=PATIENCE) as client:
            await client.allow("api", "k")
            [connection] = shared_connections(client)
            for _ in range(20):
                task = asyncio.ensure_future(client.allow("api", "k"))
                await asyncio.sleep(0)
                [exchange] = connection._in_flight.values()
                exchange.ended.add_done_callback(lambda _: task.cancel())
                await asyncio.wait([task])
            assert not (await client.allow("api", "k")).degraded
            assert not connection._abandoned and not connection._in_flight

    asyncio.run(main())


def test_too_many_cancelled_calls_close_the_connection(agent, socket_path, eventually):
    fake = agent(silent, answers())

    async def main():
        async with AsyncClient(socket_path, timeout=PATIENCE) as client:
            tasks = [asyncio.ensure_future(client.allow("api", "k")) for _ in range(MAX_ABANDONED + 1)]
            await in_time(lambda: len(fake.requests) == MAX_ABANDONED + 1)
            for task in tasks[:-1]:
                await cancel(task)
            [connection] = shared_connections(client)
            assert connection.is_open and len(connection._abandoned) == MAX_ABANDONED
            await cancel(tasks[-1])
            assert not connection.is_open
            assert not (await client.allow("api", "k")).degraded

    asyncio.run(main())
    assert fake.connections == 2


def test_a_cancelled_probe_says_nothing_and_the_next_call_is_the_probe(agent, socket_path):
    now = [1000.0]
    fake = agent(silent)

    async def main():
        breaker = allowd.Breaker(threshold=1, clock=lambda: now[0])
        async with AsyncClient(socket_path, timeout=PATIENCE, breaker=breaker) as client:
            assert is_degraded(await client.allow("api", "k", timeout=BRIEF))
            now[0] += 1.0
            probe = asyncio.ensure_future(client.allow("api", "probe"))
            await in_time(lambda: len(fake.requests) == 2)
            assert is_degraded(await client.allow("api", "not asked"))
            await cancel(probe)
            assert is_degraded(await client.allow("api", "next probe", timeout=BRIEF))

    asyncio.run(main())
    assert [request[3][1] for request in fake.requests] == ["k", "probe", "next probe"]


def test_calls_in_flight_when_a_time_out_closes_the_connection_fail_and_say_nothing_of_the_agent(
    agent, socket_path
):
    def half(peer):
        request = peer.request()
        peer.request()
        peer.send(reply_bytes(request[1])[:-3])
        peer.wait_for_close()

    fake = agent(half, answers())

    async def main():
        breaker = allowd.Breaker(threshold=2)
        async with AsyncClient(socket_path, timeout=PATIENCE, breaker=breaker) as client:
            bystander = asyncio.ensure_future(client.allow("api", "bystander"))
            await asyncio.sleep(0)
            assert is_degraded(await client.allow("api", "k", timeout=BRIEF))
            assert is_degraded(await bystander)
            assert client._here().breaker._row == 1
            assert not (await client.allow("api", "k")).degraded

    asyncio.run(main())
    assert fake.connections == 2


def test_an_answer_that_lies_ready_counts_when_the_loop_comes_round_too_late(agent, socket_path, monkeypatch):
    fake = agent(answers(LIMITED))
    monkeypatch.setattr(AsyncConnection, "_on_readable", lambda self: None)  # leaves it to the last look

    async def main():
        async with AsyncClient(socket_path, timeout=BRIEF) as client:
            task = asyncio.ensure_future(client.allow("api", "k"))
            await asyncio.sleep(0)
            assert fake.replied.wait(PATIENCE)
            time.sleep(2 * BRIEF)
            assert await task == allowd.Decision(*LIMITED)

    asyncio.run(main())


def test_what_a_peer_does_not_read_is_taken_back_when_its_caller_leaves(agent, socket_path):
    def does_not_read(peer):
        assert peer.agent.released.wait(PATIENCE)

    fake = agent(does_not_read)

    async def main():
        async with AsyncClient(
            socket_path, timeout=PATIENCE, breaker=allowd.Breaker(threshold=1000)
        ) as client:
            fill = asyncio.ensure_future(client.allow_batch([("api", "k" * 8000, 1)] * 1000))
            await asyncio.sleep(0)
            [connection] = shared_connections(client)
            for _ in range(100):
                assert is_degraded(await client.allow("api", "k", timeout=0.001))
            task = asyncio.ensure_future(client.allow("api", "k"))
            await asyncio.sleep(0)
            await cancel(task)
            assert len(connection._in_flight) == 1000 and len(connection._unsent) == 1
            assert not connection._abandoned
            await cancel(fill)
            assert not connection.is_open  # it stands in the middle of a request

    asyncio.run(main())
    fake.released.set()
