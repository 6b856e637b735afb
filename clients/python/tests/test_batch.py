# SPDX-License-Identifier: MIT
"""Many questions in one write."""

from __future__ import annotations

import threading

import pytest
from expectations import BRIEF, is_degraded
from fake_agent import LIMITED, OK, PATIENCE, answers, silent

import allowd
from allowd.call import MAX_BATCH
from allowd.connection import MAX_ABANDONED


def test_a_batch_is_one_write_and_answered_in_order(agent, client):
    def script(peer):
        requests = [peer.request() for _ in range(3)]
        for request in reversed(requests):
            peer.reply(request, [True, 10, request[3][2]] + OK[3:])
        peer.wait_for_close()

    fake = agent(script)
    decisions = client().allow_batch(
        [("api", "a", 1), ("login", b"b", 2), ({"name": "x", "rate": "1/s"}, "c", 3)]
    )
    assert [decision.remaining for decision in decisions] == [1, 2, 3]
    assert [request[2] for request in fake.requests] == ["allow"] * 3
    assert [request[3][:3] for request in fake.requests] == [
        ["api", "a", 1],
        ["login", b"b", 2],
        [{"name": "x", "rate": "1/s"}, "c", 3],
    ]
    assert len({request[3][3]["deadline_us"] for request in fake.requests}) == 1


def test_an_empty_batch_asks_nobody(client):
    c = client()
    assert c.allow_batch([]) == []
    assert c.degraded_total == 0


def test_a_batch_has_a_bound(client):
    with pytest.raises(ValueError):
        client().allow_batch([("api", "k", 1)] * (MAX_BATCH + 1))


def test_in_a_batch_answers_count_and_the_policy_decides_the_rest(agent, client):
    def script(peer):
        requests = [peer.request() for _ in range(3)]
        peer.reply(requests[1], LIMITED)
        peer.reply(requests[2], None, "overloaded: over its buffer")
        peer.wait_for_close()

    agent(script)
    decisions = client().allow_batch([("api", "k", 1)] * 3, timeout=1.0)
    assert is_degraded(decisions[0])
    assert decisions[1] == allowd.Decision(*LIMITED)
    assert is_degraded(decisions[2])


def test_a_batch_that_loses_its_connection_keeps_its_answers(agent, client):
    def script(peer):
        peer.request()
        peer.reply(peer.request(), LIMITED)

    fake = agent(script, answers())
    decisions = client().allow_batch([("api", "k", 1)] * 2)
    assert is_degraded(decisions[0])
    assert decisions[1] == allowd.Decision(*LIMITED)
    assert len(fake.requests) == 2


def test_a_batch_that_times_out_is_one_time_out(agent, client):
    fake = agent(silent)
    c = client()
    for _ in range(3):
        assert all(is_degraded(d) for d in c.allow_batch([("api", "k", 1)] * 5, timeout=BRIEF))
    assert is_degraded(c.allow("api", "not asked"))
    assert len(fake.requests) == 15


def test_a_batch_raises_the_first_mistake_with_what_the_others_got(agent, client):
    def script(peer):
        requests = [peer.request() for _ in range(4)]
        peer.reply(requests[3], OK)
        peer.reply(requests[2], None, "bad_request: second")
        peer.reply(requests[1], None, "unknown_limit: first")
        peer.reply(requests[0], LIMITED)
        peer.wait_for_close()

    fake = agent(script)
    with pytest.raises(allowd.AgentError) as caught:
        client().allow_batch([("api", "k", 1)] * 4)
    assert (caught.value.code, caught.value.index) == ("unknown_limit", 1)
    assert caught.value.decisions == [allowd.Decision(*LIMITED), None, None, allowd.Decision(*OK)]
    assert fake.connections == 1


def test_a_batch_reads_while_it_writes(agent, client):
    padding = "x" * 4000  # both directions exceed what the kernel buffers

    def script(peer):
        while True:
            request = peer.request()
            if request is None:
                return
            peer.reply(request, OK + [padding])

    agent(script)
    decisions = client().allow_batch([("api", f"{i}".ljust(4000), 1) for i in range(500)])
    assert [decision.degraded for decision in decisions] == [False] * 500


@pytest.mark.parametrize("count", [MAX_ABANDONED, MAX_BATCH], ids=["few", "many"])
def test_a_peer_that_does_not_read_costs_the_deadline_and_the_connection(agent, client, count):
    received = []
    closed = threading.Event()

    def does_not_read(peer):
        assert peer.agent.released.wait(PATIENCE)
        chunk = b"-"
        while chunk:
            chunk = peer.socket.recv(1 << 20)
            received.append(len(chunk))
        closed.set()

    fake = agent(does_not_read, answers())
    c = client()
    decisions = c.allow_batch([("api", "k" * 8000, 1)] * count, timeout=0.2)
    assert all(is_degraded(decision) for decision in decisions)
    fake.released.set()
    assert closed.wait(PATIENCE)
    assert sum(received) < 8000 * count  # or the kernel took it all, and nothing was tested
    assert not c.allow("api", "k").degraded
    assert fake.connections == 2
