# SPDX-License-Identifier: MIT
"""Threads, forks, interruptions and the end."""

from __future__ import annotations

import os
import signal
import threading
import traceback

import pytest
from expectations import BRIEF, is_degraded, start_together, wait_until_closed_by_peer
from fake_agent import LIMITED, OK, PATIENCE, answers, answers_once, answers_when_released, silent

import allowd


def test_threads_get_their_own_answers(agent, blocking_client):
    def echo(peer):
        while True:
            request = peer.request()
            if request is None:
                return
            peer.reply(request, [True, 10, request[3][2]] + OK[3:])

    fake = agent(echo)
    c = blocking_client()
    results = start_together(8, lambda i: [c.allow("api", "k", 1000 * i + n).remaining for n in range(100)])
    assert results == [[1000 * i + n for n in range(100)] for i in range(8)]
    assert 1 <= fake.connections <= 8


def test_a_slow_answer_of_one_thread_does_not_hold_up_another(agent, blocking_client, eventually):
    fake = agent(answers_when_released(LIMITED), answers())
    c = blocking_client()
    decisions = []
    thread = threading.Thread(target=lambda: decisions.append(c.allow("api", "slow")))
    thread.start()
    eventually(lambda: len(fake.requests) == 1)
    assert c.allow("api", "fast") == allowd.Decision(*OK)
    fake.released.set()
    thread.join(PATIENCE)
    assert decisions == [allowd.Decision(*LIMITED)]


def test_no_more_connections_are_kept_than_max_idle(agent, blocking_client, eventually):
    all_there = threading.Barrier(4)

    def script(peer):
        request = peer.request()
        all_there.wait(PATIENCE)
        peer.reply(request)
        peer.wait_for_close()

    fake = agent(script)
    c = blocking_client(max_idle=1)
    start_together(4, lambda _: c.allow("api", "k"))
    assert fake.connections == 4
    eventually(lambda: len(fake.client_closed) == 3)


def in_a_child(work) -> None:
    """Runs ``work`` in a forked child and fails if it fails, or does not end."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(int(PATIENCE))
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def is_open(descriptor: int, inode: int) -> bool:
    """Whether the descriptor still is the socket of that inode; its number may be in use again."""
    try:
        return os.fstat(descriptor).st_ino == inode
    except OSError:
        return False


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
class TestFork:
    def test_a_child_opens_its_own_connection_and_leaves_the_parents_alone(
        self, agent, blocking_client, eventually
    ):
        fake = agent(answers(OK), answers(LIMITED))
        c = blocking_client()
        assert c.allow("api", "parent") == allowd.Decision(*OK)

        def child():
            assert c.allow("api", "child") == allowd.Decision(*LIMITED)
            c.close()

        in_a_child(child)
        eventually(lambda: fake.client_closed == [1])
        assert c.allow("api", "parent") == allowd.Decision(*OK)
        assert fake.connections == 2

    def test_a_child_closes_what_it_inherited_at_its_first_call(self, agent, blocking_client):
        agent(answers())
        c = blocking_client()
        c.allow("api", "parent")
        [idle] = c._here().pool._idle

        def child():
            inherited = idle._socket.fileno()
            inode = os.fstat(inherited).st_ino
            assert not c.allow("api", "child").degraded
            assert not is_open(inherited, inode)

        in_a_child(child)

    def test_a_fork_during_a_call_shares_neither_its_connection_nor_its_answer(
        self, agent, blocking_client, eventually
    ):
        fake = agent(answers_when_released(LIMITED), answers(OK))
        c = blocking_client()
        decisions = []
        thread = threading.Thread(target=lambda: decisions.append(c.allow("api", "parent")))
        thread.start()
        eventually(lambda: len(fake.requests) == 1)
        [lent] = c._here().pool._open

        def child():
            inherited = lent._socket.fileno()
            inode = os.fstat(inherited).st_ino
            assert c.allow("api", "child") == allowd.Decision(*OK)
            assert not is_open(inherited, inode)

        in_a_child(child)
        fake.released.set()
        thread.join(PATIENCE)
        assert decisions == [allowd.Decision(*LIMITED)]

    def test_a_lock_held_at_the_fork_does_not_hold_the_child(self, agent, blocking_client):
        agent(answers())
        c = blocking_client()
        c.allow("api", "parent")
        here = c._here()

        def child():
            assert not c.allow("api", "child").degraded

        with here.pool._lock, here.breaker._lock, here._lock:
            in_a_child(child)

    def test_a_child_starts_with_a_closed_breaker(self, agent, blocking_client):
        agent(silent, answers())
        c = blocking_client(breaker=allowd.Breaker(threshold=1, open_for=3600.0))
        assert is_degraded(c.allow("api", "parent", timeout=BRIEF))
        assert is_degraded(c.allow("api", "parent"))

        def child():
            assert not c.allow("api", "child").degraded

        in_a_child(child)

    def test_a_closed_client_stays_closed_in_the_child(self, agent, blocking_client):
        agent(answers())
        c = blocking_client()
        c.close()

        def child():
            with pytest.raises(allowd.AllowdError):
                c.allow("api", "child")

        in_a_child(child)


class Interruption(Exception):
    pass


def test_a_call_interrupted_from_outside_leaves_no_connection_behind(agent, blocking_client, eventually):
    def interrupt(*_):
        raise Interruption

    fake = agent(silent, answers())
    c = blocking_client(breaker=allowd.Breaker(threshold=1))
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(Interruption):
            c.allow("api", "k")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    eventually(lambda: fake.client_closed == [0])
    assert not c.allow("api", "k").degraded
    assert fake.connections == 2


def test_a_restored_SIGPIPE_does_not_end_the_process(agent, blocking_client):
    fake = agent(answers_once)
    c = blocking_client()
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        assert not c.allow("api", "k").degraded
        wait_until_closed_by_peer(c)
        assert not c.allow("api", "k").degraded
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert fake.connections == 2


def test_close_closes_and_a_closed_client_is_an_error(agent, blocking_client, eventually):
    fake = agent(answers())
    c = blocking_client()
    c.allow("api", "k")
    c.close()
    c.close()
    eventually(lambda: fake.client_closed == [0])
    for question in (lambda: c.allow("api", "k"), lambda: c.allow_batch([]), c.ping):
        with pytest.raises(allowd.AllowdError, match="closed") as caught:
            question()
        assert not isinstance(caught.value, allowd.Unavailable)


def test_close_during_a_call_lets_it_end_and_then_closes_its_connection(agent, blocking_client, eventually):
    fake = agent(answers_when_released())
    c = blocking_client()
    decisions = []
    thread = threading.Thread(target=lambda: decisions.append(c.allow("api", "k")))
    thread.start()
    eventually(lambda: len(fake.requests) == 1)
    c.close()
    fake.released.set()
    thread.join(PATIENCE)
    assert decisions == [allowd.Decision(*OK)]
    eventually(lambda: fake.client_closed == [0])
