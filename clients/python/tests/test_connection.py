# SPDX-License-Identifier: MIT
"""One connection, on a socket pair, and the pool that lends connections."""

from __future__ import annotations

import contextlib
import socket
import time

import pytest
from fake_agent import PATIENCE

from allowd import TimedOut, Unavailable
from allowd.connection import Connection, StaleConnection
from allowd.pool import Pool


@pytest.fixture
def pair():
    """A connection and the peer's socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ours.setblocking(False)
    theirs.settimeout(PATIENCE)
    with contextlib.closing(Connection(ours)) as connection, theirs:
        yield connection, theirs


def exchange(connection: Connection, data: bytes, seconds: float = PATIENCE) -> None:
    connection.exchange(data, [1], {}, time.monotonic() + seconds)


def test_after_the_deadline_nothing_is_sent_and_the_connection_stays_good(pair):
    connection, peer = pair
    with pytest.raises(TimedOut):
        exchange(connection, b"request", seconds=-1.0)
    assert connection.usable
    connection.close()
    assert peer.recv(100) == b""


def test_a_peer_that_was_gone_before_the_first_byte_is_stale(pair):
    connection, peer = pair
    peer.close()
    with pytest.raises(StaleConnection):
        exchange(connection, b"request")
    assert not connection.usable


def test_a_peer_that_leaves_with_the_request_unread_is_lost_and_not_stale(pair):
    connection, peer = pair
    send = connection._send

    def send_and_lose_the_peer(*args, **kwargs):
        sent = send(*args, **kwargs)
        peer.close()
        return sent

    connection._send = send_and_lose_the_peer
    with pytest.raises(Unavailable) as caught:
        exchange(connection, b"request")
    assert type(caught.value) is Unavailable
    assert not connection.usable


def test_a_peer_that_leaves_in_the_middle_of_the_request_is_lost_and_not_stale(pair):
    connection, peer = pair
    connection._wait = lambda seconds, for_writing: (peer.close(), (False, True))[1]
    with pytest.raises(Unavailable) as caught:
        exchange(connection, b"r" * 10_000_000)
    assert type(caught.value) is Unavailable
    assert not connection.usable


def test_msgids_go_round_and_pass_over_the_abandoned_ones(pair):
    connection, _ = pair
    connection._msgid = 2**32 - 2
    connection._abandoned = {0, 2}
    assert connection.new_msgids(3) == [2**32 - 1, 1, 3]


class FakeConnection:
    def __init__(self, max_reply: int) -> None:
        self.usable = True
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_a_pool_lends_the_connection_returned_last():
    pool = Pool(FakeConnection, max_idle=8)
    first, second = pool.take_new(), pool.take_new()
    pool.give_back(first)
    pool.give_back(second)
    assert pool.take_idle() is second
    assert pool.take_idle() is first
    assert pool.take_idle() is None


def test_a_pool_closes_what_it_cannot_lend_again():
    pool = Pool(FakeConnection, max_idle=1)
    kept, spoilt, surplus = pool.take_new(), pool.take_new(), pool.take_new()
    spoilt.usable = False
    pool.give_back(spoilt)
    pool.give_back(kept)
    pool.give_back(surplus)
    assert (kept.is_closed, spoilt.is_closed, surplus.is_closed) == (False, True, True)


def test_a_closed_pool_closes_idle_connections_at_once_and_lent_ones_on_return():
    pool = Pool(FakeConnection, max_idle=8)
    idle, lent = pool.take_new(), pool.take_new()
    pool.give_back(idle)
    pool.close()
    assert (idle.is_closed, lent.is_closed) == (True, False)
    pool.give_back(lent)
    assert lent.is_closed
