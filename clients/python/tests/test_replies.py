# SPDX-License-Identifier: MIT
"""Deadlines, late replies, and what a peer may send."""

from __future__ import annotations

import time

import msgpack
import pytest
from expectations import BRIEF, is_degraded
from fake_agent import LIMITED, OK, PATIENCE, answers, reply_bytes, silent

import allowd
from allowd.connection import MAX_ABANDONED, Connection


def test_a_silent_agent_costs_the_deadline_and_no_more(agent, client):
    agent(silent)
    c = client()
    start = time.monotonic()
    assert is_degraded(c.allow("api", "k", timeout=BRIEF))
    assert BRIEF <= time.monotonic() - start < PATIENCE / 2
    with pytest.raises(allowd.TimedOut):
        c.ping(timeout=BRIEF)


def test_a_late_reply_is_not_taken_for_the_next_answer(agent, client):
    def script(peer):
        first = peer.request()
        second = peer.request()
        peer.reply(first, LIMITED)
        peer.reply(second, OK)
        peer.wait_for_close()

    fake = agent(script)
    c = client()
    assert is_degraded(c.allow("api", "first", timeout=BRIEF))
    decision = c.allow("api", "second")
    assert decision.allowed and not decision.degraded
    assert fake.connections == 1


def test_replies_of_unknown_ids_are_dropped(agent, client):
    def script(peer):
        request = peer.request()
        for msgid in (request[1] + 1, request[1] + 1000, 2**32 - 1):
            peer.send(reply_bytes(msgid, LIMITED))
        peer.reply(request, OK)
        peer.reply(request, LIMITED)  # and a second answer to the same
        peer.reply(peer.request(), LIMITED)
        peer.wait_for_close()

    fake = agent(script)
    c = client()
    assert c.allow("api", "k") == allowd.Decision(*OK)
    assert c.allow("api", "k") == allowd.Decision(*LIMITED)
    assert fake.connections == 1


def test_only_unknown_ids_are_a_time_out(agent, client):
    def script(peer):
        peer.send(reply_bytes(peer.request()[1] + 1, LIMITED))
        peer.wait_for_close()

    agent(script)
    with pytest.raises(allowd.TimedOut):
        client().ping(timeout=BRIEF)


def test_an_answer_that_lies_ready_counts_even_after_the_deadline(agent, blocking_client, monkeypatch):
    fake = agent(answers(LIMITED))
    c = blocking_client()
    send = Connection._send

    def send_and_sleep_through_the_deadline(self, *args, **kwargs):
        sent = send(self, *args, **kwargs)
        assert fake.replied.wait(PATIENCE)
        time.sleep(2 * BRIEF)
        return sent

    monkeypatch.setattr(Connection, "_send", send_and_sleep_through_the_deadline)
    assert c.allow("api", "k", timeout=BRIEF) == allowd.Decision(*LIMITED)


def test_as_many_abandoned_requests_as_allowed_leave_the_connection_in_use(agent, client):
    def script(peer):
        abandoned = [peer.request() for _ in range(MAX_ABANDONED)]
        peer.reply(peer.request())
        assert len(abandoned) == MAX_ABANDONED
        peer.wait_for_close()

    fake = agent(script)
    c = client()
    assert all(is_degraded(d) for d in c.allow_batch([("api", "k", 1)] * MAX_ABANDONED, timeout=BRIEF))
    assert not c.allow("api", "k").degraded
    assert fake.connections == 1


def test_one_more_abandoned_request_closes_it(agent, client, eventually):
    fake = agent(silent, answers())
    c = client()
    c.allow_batch([("api", "k", 1)] * MAX_ABANDONED, timeout=BRIEF)
    c.allow("api", "k", timeout=BRIEF)
    eventually(lambda: fake.client_closed == [0])
    assert not c.allow("api", "k").degraded
    assert fake.connections == 2


def test_late_replies_make_room_again(agent, client):
    def script(peer):
        abandoned = [peer.request() for _ in range(MAX_ABANDONED)]
        request = peer.request()
        for late in abandoned:
            peer.reply(late, LIMITED)
        peer.reply(request)
        peer.request()
        peer.reply(peer.request())
        peer.wait_for_close()

    fake = agent(script)
    c = client()
    c.allow_batch([("api", "k", 1)] * MAX_ABANDONED, timeout=BRIEF)
    assert not c.allow("api", "k").degraded
    c.allow("api", "k", timeout=BRIEF)
    assert not c.allow("api", "k").degraded
    assert fake.connections == 1


def test_half_a_reply_at_the_deadline_closes_the_connection(agent, client, eventually):
    def half(peer):
        peer.send(reply_bytes(peer.request()[1], LIMITED)[:-3])
        peer.wait_for_close()

    fake = agent(half, answers())
    c = client()
    assert is_degraded(c.allow("api", "k", timeout=1.0))
    eventually(lambda: fake.client_closed == [0])
    assert not c.allow("api", "k").degraded


@pytest.mark.parametrize("question", ["info", "stats"])
def test_a_large_question_has_a_connection_of_its_own(agent, client, eventually, question):
    fake = agent(answers(OK), silent, answers({"version": "1"}))
    c = client()
    assert c.allow("api", "k") == allowd.Decision(*OK)
    with pytest.raises(allowd.TimedOut):
        getattr(c, question)(timeout=BRIEF)
    eventually(lambda: fake.client_closed == [1])
    assert getattr(c, question)() == {"version": "1"}
    eventually(lambda: fake.client_closed == [1, 2])
    assert c.allow("api", "k") == allowd.Decision(*OK)
    assert fake.connections == 3


# -- What the peer may send


def test_a_reply_split_at_every_byte(agent, client):
    def script(peer):
        for byte in reply_bytes(peer.request()[1], LIMITED):
            peer.send(bytes([byte]))
            time.sleep(0.001)
        peer.wait_for_close()

    agent(script)
    assert client().allow("api", "k") == allowd.Decision(*LIMITED)


GARBAGE = {
    "a byte that is none of MessagePack": b"\xc1",
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "a request": msgpack.packb([0, 1, "allow", []]),
    "a text of 5 MB": b"\xdb" + (5_000_000).to_bytes(4, "big") + b"x" * 200_000,
    "an array of 4 billion": b"\xdd\xff\xff\xff\xff",
    "arrays in arrays": b"\x91" * 200_000,
    "a reply of 70 KB": reply_bytes(10**9, b"x" * 70_000),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_closes_the_connection_and_the_policy_decides(agent, client, eventually, garbage):
    def script(peer):
        peer.request()
        peer.send_until_closed(garbage)

    fake = agent(script, script, answers())
    c = client()
    assert is_degraded(c.allow("api", "k"))
    eventually(lambda: fake.client_closed == [0])
    with pytest.raises(allowd.ProtocolError):
        c.ping()
    assert not c.allow("api", "k").degraded
    assert fake.connections == 3


@pytest.mark.parametrize("result", [None, "ok", LIMITED[:9], {}, [True] * 10])
def test_a_result_that_is_no_decision_is_garbage(agent, client, eventually, result):
    fake = agent(answers(result), answers())
    c = client()
    assert is_degraded(c.allow("api", "k"))
    eventually(lambda: fake.client_closed == [0])
    assert not c.allow("api", "k").degraded


def test_an_answer_before_garbage_counts(agent, client, eventually):
    def script(peer):
        peer.send(reply_bytes(peer.request()[1], LIMITED) + b"\xc1")
        peer.wait_for_close()

    fake = agent(script, answers())
    c = client()
    assert c.allow("api", "k") == allowd.Decision(*LIMITED)
    eventually(lambda: fake.client_closed == [0])


def test_a_megabyte_is_fine_for_info_and_stats_alone(agent, client):
    big = {"text": "x" * 1_000_000}

    def script(peer):
        peer.send_until_closed(reply_bytes(peer.request()[1], big))

    agent(script)
    c = client()
    assert c.info() == big
    assert c.stats() == big
    with pytest.raises(allowd.ProtocolError):
        c.ping()
