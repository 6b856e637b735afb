# SPDX-License-Identifier: MIT
"""Losing the agent and finding it again, and leaving it alone when it hangs."""

from __future__ import annotations

import socket
import sys
import threading

import pytest
from expectations import BRIEF, ManualClock, is_degraded, start_together, wait_until_closed_by_peer
from fake_agent import LIMITED, OK, PATIENCE, answers, answers_once, silent

import allowd


def test_an_agent_that_starts_later_is_used_by_the_next_call(agent, client):
    c = client()
    for _ in range(10):
        assert is_degraded(c.allow("api", "k"))
    agent(answers())
    assert not c.allow("api", "k").degraded


def test_a_socket_file_without_a_listener_is_no_agent(client, socket_path):
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(socket_path)
    dead.close()
    c = client()
    for _ in range(5):
        with pytest.raises(allowd.Unavailable, match="refused"):
            c.ping()


def test_an_agent_restarted_between_two_calls_is_not_noticed(agent, client):
    c = client()
    first = agent(answers(OK))
    assert c.allow("api", "k") == allowd.Decision(*OK)
    first.stop()
    second = agent(answers(LIMITED))
    assert c.allow("api", "k") == allowd.Decision(*LIMITED)
    assert (len(first.requests), len(second.requests)) == (1, 1)
    assert c.degraded_total == 0


def test_all_idle_connections_go_with_a_stale_one(agent, blocking_client):
    all_there = threading.Barrier(4)

    def script(peer):
        request = peer.request()
        all_there.wait(PATIENCE)
        peer.reply(request)
        peer.wait_for_close()

    fake = agent(script)
    c = blocking_client()
    start_together(4, lambda _: c.allow("api", "k"))
    assert len(c._here().pool._idle) == 4
    fake.stop()
    agent(answers())
    assert not c.allow("api", "k").degraded
    assert len(c._here().pool._idle) == 1


def test_a_stale_connection_is_replaced_once(agent, blocking_client):
    def slam(peer):
        pass

    fake = agent(answers_once, slam)
    c = blocking_client()
    assert not c.allow("api", "k").degraded
    wait_until_closed_by_peer(c)
    assert is_degraded(c.allow("api", "k"))
    assert fake.connections == 2


def test_a_request_that_may_have_been_charged_is_not_sent_again(agent, client):
    def read_and_leave(peer):
        peer.reply(peer.request())
        peer.request()

    fake = agent(read_and_leave, answers())
    c = client()
    assert not c.allow("api", "first").degraded
    assert is_degraded(c.allow("api", "second"))
    assert [request[3][1] for request in fake.requests] == ["first", "second"]
    assert not c.allow("api", "third").degraded
    assert fake.connections == 2


def test_a_request_that_lay_unread_when_the_agent_left_is_not_sent_again(agent, client):
    def leave_without_reading(peer):
        peer.reply(peer.request())
        peer.socket.recv(1, socket.MSG_PEEK)

    fake = agent(leave_without_reading, answers())
    c = client()
    assert not c.allow("api", "first").degraded
    assert is_degraded(c.allow("api", "second"))
    assert fake.connections == 1
    assert not c.allow("api", "third").degraded
    assert [request[3][1] for request in fake.requests] == ["first", "third"]


@pytest.mark.skipif(sys.platform != "linux", reason="other kernels refuse when the backlog is full")
def test_a_full_backlog_is_a_time_out_and_is_not_waited_for(client, socket_path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(socket_path)
    listener.listen(0)
    waiting = []
    try:
        while True:
            sock = socket.socket(socket.AF_UNIX)
            waiting.append(sock)
            sock.setblocking(False)
            try:
                sock.connect(socket_path)
            except BlockingIOError:
                break
        c = client()
        for _ in range(3):
            with pytest.raises(allowd.TimedOut, match="backlog"):
                c.ping()
        with pytest.raises(allowd.Unavailable, match="in a row"):
            c.ping()
    finally:
        for sock in [*waiting, listener]:
            sock.close()


# -- The breaker


def test_after_three_time_outs_the_agent_is_left_alone_for_a_second(agent, client):
    clock = ManualClock()
    fake = agent(silent)
    c = client(breaker=allowd.Breaker(clock=clock))
    for _ in range(3):
        assert is_degraded(c.allow("api", "k", timeout=BRIEF))
    for _ in range(10):
        assert is_degraded(c.allow("api", "k"))  # a patient call: it does not wait
    with pytest.raises(allowd.Unavailable) as caught:
        c.ping()
    assert not isinstance(caught.value, allowd.TimedOut)
    clock.now += 0.75
    decision = c.allow("api", "k", fail="closed")
    assert decision.retry_after == 0.25
    assert len(fake.requests) == 3


def test_a_probe_that_is_answered_ends_it(agent, client):
    clock = ManualClock()

    def script(peer):
        for _ in range(4):
            peer.request()
        answers()(peer)

    fake = agent(script)
    c = client(breaker=allowd.Breaker(clock=clock))
    for _ in range(3):
        c.allow("api", "k", timeout=BRIEF)
    clock.now += 1.0
    assert is_degraded(c.allow("api", "probe that times out", timeout=BRIEF))
    assert is_degraded(c.allow("api", "not asked"))
    clock.now += 1.0
    assert not c.allow("api", "probe").degraded
    assert not c.allow("api", "k").degraded
    assert [request[3][1] for request in fake.requests] == ["k"] * 3 + ["probe that times out", "probe", "k"]


def test_while_the_probe_is_under_way_the_others_fail_at_once(agent, client, eventually):
    clock = ManualClock()

    def script(peer):
        for _ in range(3):
            peer.request()
        probe = peer.request()
        assert peer.agent.released.wait(PATIENCE)
        peer.reply(probe)
        answers()(peer)

    fake = agent(script)
    c = client(breaker=allowd.Breaker(clock=clock))
    for _ in range(3):
        c.allow("api", "k", timeout=BRIEF)
    clock.now += 1.0
    decisions = []
    probe = threading.Thread(target=lambda: decisions.append(c.allow("api", "probe")))
    probe.start()
    eventually(lambda: len(fake.requests) == 4)
    assert is_degraded(c.allow("api", "not asked"))
    fake.released.set()
    probe.join(PATIENCE)
    assert [decision.degraded for decision in decisions] == [False]
    assert len(fake.requests) == 4


def test_an_answer_between_time_outs_keeps_it_closed(agent, client):
    def script(peer):
        while True:
            for _ in range(2):
                if peer.request() is None:
                    return
            request = peer.request()
            if request is None:
                return
            peer.reply(request)

    agent(script)
    c = client(breaker=allowd.Breaker(clock=ManualClock()))
    for _ in range(3):
        assert is_degraded(c.allow("api", "k", timeout=BRIEF))
        assert is_degraded(c.allow("api", "k", timeout=BRIEF))
        assert not c.allow("api", "k").degraded
