# SPDX-License-Identifier: MIT
"""What the asyncio client does besides: one connection for many tasks, cancellation, loops and forks.

What both clients do is tested with both, in the other modules.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
import time

import pytest
from expectations import BRIEF, is_degraded
from fake_agent import LIMITED, OK, PATIENCE, answers, answers_once, reply_bytes, silent
from test_processes import in_a_child, is_open

import allowd
from allowd.aio import AsyncClient
from allowd.aio.connection import AsyncConnection
from allowd.connection import MAX_ABANDONED


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


# -- Ending early


async def cancel(task) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def in_time(condition) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, "it did not happen"
        await asyncio.sleep(0.002)


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


def shared_connections(client):
    return [connections.shared for connections in client._here()._loops.values()]


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
    replied = threading.Event()

    def script(peer):
        peer.reply(peer.request(), LIMITED)
        replied.set()
        peer.wait_for_close()

    agent(script)
    monkeypatch.setattr(AsyncConnection, "_on_readable", lambda self: None)  # leaves it to the last look

    async def main():
        async with AsyncClient(socket_path, timeout=BRIEF) as client:
            task = asyncio.ensure_future(client.allow("api", "k"))
            await asyncio.sleep(0)
            assert replied.wait(PATIENCE)
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


# -- Losing the connection


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
    def slow(peer):
        request = peer.request()
        assert peer.agent.released.wait(PATIENCE)
        peer.reply(request)
        peer.wait_for_close()

    fake = agent(slow)

    async def main():
        client = AsyncClient(socket_path, timeout=PATIENCE)
        task = asyncio.ensure_future(client.allow("api", "k"))
        await in_time(lambda: len(fake.requests) == 1)
        await client.close()
        fake.released.set()
        assert await task == allowd.Decision(*OK)
        await in_time(lambda: fake.client_closed == [0])

    asyncio.run(main())


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
        def slow(peer):
            request = peer.request()
            assert peer.agent.released.wait(PATIENCE)
            peer.reply(request, LIMITED)
            peer.wait_for_close()

        fake = agent(slow, answers(OK))
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
