# SPDX-License-Identifier: MIT
"""What a broken, hostile or lazy client can do: harm itself, be counted, and nothing else. Memory store."""

from __future__ import annotations

import random
import select
import socket
import threading
import time
from collections.abc import Iterator

import msgpack
import pytest

from daemon import Agent, Rack, is_sanitized
from processes import wait_until
from rpc import Client, HungUp, request

LIMITS = '[limits.api]\nrate = "10/h"\n'
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def agent(shared_rack: Rack) -> Agent:
    return shared_rack.start(LIMITS)


@pytest.fixture
def neighbour(agent: Agent) -> Iterator[Client]:
    """Somebody who is served before and after, on a connection that stays open."""
    with agent.connect() as client:
        assert client.ask("ping") == "pong"
        yield client
        assert client.ask("ping") == "pong"


def send_what_it_takes(client: Client, data: bytes) -> None:
    """Sends until the agent closes."""
    try:
        client.send(data)
    except (BrokenPipeError, ConnectionResetError):
        pass


# What loses the framing: nobody can be answered.
VIOLATIONS = {
    "the byte that MessagePack never uses": b"\xc1",
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a command of the admin socket": b"ping\n",
    "a TLS hello": bytes.fromhex("160301020001 0001fc0303") + b"x" * 512,
    "zeros": b"\x00" * 4096,
    "a reply instead of a request": msgpack.packb([1, 1, None, "pong"]),
    "an unknown type of message": msgpack.packb([3, 1, "ping", []]),
    "a map": msgpack.packb({"method": "ping"}),
    "an empty array": msgpack.packb([]),
    "an array of two": msgpack.packb([0, 1]),
    "text as type": msgpack.packb(["0", 1, "ping", []]),
    "text as msgid": msgpack.packb([0, "1", "ping", []]),
    "nil as msgid": msgpack.packb([0, None, "ping", []]),
    "a nested bomb": b"\x91" * 200_000,
    "a nested bomb of maps": b"\x81\x00" * 100_000,
    "an endless notification": b"\x93\x02\xa4ping\xdc\xff\xff" + b"\x00" * 20_000,
    "a notification with a bomb": b"\x93\x02\xa4ping" + b"\x91" * 10_000,
}

# What can still be answered by msgid, but has no known end.
UNENDING = {
    "a bomb as params": (b"\x94\x00\x07\xa5allow" + b"\x91" * 20_000, "bad_request"),
    "nine levels": (b"\x94\x00\x07\xa5allow" + b"\x91" * 8 + b"\x00", "bad_request"),
    "an unused byte in params": (b"\x94\x00\x07\xa5allow\x92\xa3api\xc1", "bad_request"),
    "a key of four gigabytes": (b"\x94\x00\x07\xa5allow\x92\xa3api\xdb\xff\xff\xff\xff" + b"k" * 20_000, "too_large"),
    "a blob of four gigabytes": (b"\x94\x00\x07\xa5allow\x92\xa3api\xc6\xff\xff\xff\xff" + b"k" * 20_000, "too_large"),
    "four billion params": (b"\x94\x00\x07\xa5allow\xdd\xff\xff\xff\xff" + b"\xa3api" * 5_000, "too_large"),
    "four billion options": (b"\x94\x00\x07\xa5allow\x94\xa3api\xa1k\x01\xdf\xff\xff\xff\xff" + b"\xc0" * 9_000,
                             "too_large"),
    "four billion elements": (b"\xdd\xff\xff\xff\xff\x00\x07\xa5allow" + b"\xc0" * 9_000, "too_large"),
    "a key of 9 KiB": (msgpack.packb([0, 7, "allow", ["api", "k" * 9216]]), "too_large"),
    "a method of 9 KiB": (msgpack.packb([0, 7, "m" * 9216, []]), "too_large"),
    "one byte too many": (msgpack.packb([0, 7, "nope", ["x" * (8193 - 12)]]), "too_large"),
}  # fmt: skip


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_client_that_loses_its_framing_is_cut_off_and_counted(agent: Agent, neighbour: Client, name: str) -> None:
    before = agent.metric("connections_violating_total")
    with agent.connect() as client:
        send_what_it_takes(client, VIOLATIONS[name])
        assert client.is_hung_up()
    wait_until(lambda: agent.metric("connections_violating_total") == before + 1, "it is counted, once")


@pytest.mark.parametrize("name", UNENDING)
def test_a_request_without_end_is_refused_by_name_and_its_connection_closed(
    agent: Agent, neighbour: Client, name: str
) -> None:
    data, code = UNENDING[name]
    before = agent.metric("requests_refused_total")
    with agent.connect() as client:
        send_what_it_takes(client, data)
        reply = client.receive()
        assert (reply.msgid, reply.result) == (7, None)
        assert (reply.error or "").startswith(f"{code}: "), reply.error
        assert client.is_hung_up()
    assert agent.metric("requests_refused_total") == before + 1


def test_requests_before_the_garbage_are_answered(agent: Agent, neighbour: Client) -> None:
    with agent.connect() as client:
        client.send(request("allow", "api", "before", msgid=1) + request("ping", msgid=2) + UNENDING["nine levels"][0])
        assert [client.receive().msgid for _ in range(3)] == [1, 2, 7]
        assert client.is_hung_up()
    assert neighbour.peek("api", "before").remaining == 9


def test_eight_levels_of_nesting_are_fine(agent: Agent) -> None:
    with agent.connect() as client:
        client.send(b"\x94\x00\x07\xa5allow" + b"\x91" * 7 + b"\x00")
        assert (client.receive().error or "").startswith("bad_request: ")
        assert client.ask("ping") == "pong"


def test_a_request_of_exactly_8_kib_is_read(agent: Agent) -> None:
    whole = msgpack.packb([0, 7, "nope", ["x" * (8192 - 12)]])
    assert len(whole) == 8192
    with agent.connect() as client:
        client.send(whole * 20)
        for _ in range(20):
            assert (client.receive().error or "").startswith("unknown_method: ")
        assert client.ask("ping") == "pong"


def test_a_key_that_is_too_large_costs_only_its_request(agent: Agent) -> None:
    with agent.connect() as client:
        client.send(msgpack.packb([0, 7, "allow", ["api", "k" * 8000]]))
        assert (client.receive().error or "").startswith("too_large: ")
        assert client.ask("ping") == "pong"


def test_half_a_message_and_then_silence_disturbs_nobody(agent: Agent, neighbour: Client) -> None:
    whole = request("allow", "api", "half", 10)
    lazy = [agent.connect() for _ in range(len(whole) - 1)]
    for length, client in enumerate(lazy, 1):
        client.send(whole[:length])
    for _ in range(50):
        assert neighbour.ask("ping") == "pong"
    assert neighbour.peek("api", "half").remaining == 10, "half a request charges nothing"
    lazy[-1].send(whole[-1:])
    assert lazy[-1].receive().result[:3] == [True, 10, 0]
    for client in lazy:
        client.close()


def test_random_bytes_never_harm_the_agent(agent: Agent, neighbour: Client) -> None:
    dice = random.Random(20_260_101)
    valid = request("allow", {"name": "n", "rate": "1/h", "burst": 5}, "key", 2, {"deadline_us": 1000})
    for _ in range(300):
        mutated = bytearray(valid * dice.randint(1, 4))
        for _ in range(dice.randint(1, 8)):
            mutated[dice.randrange(len(mutated))] = dice.randrange(256)
        with agent.connect() as client:
            send_what_it_takes(client, bytes(mutated))
            client.half_close()
            assert client.is_hung_up(), mutated.hex()
    assert neighbour.ask("ping") == "pong"


def test_clients_that_leave_without_their_replies_disturb_nobody(agent: Agent, neighbour: Client) -> None:
    for _ in range(100):
        with agent.connect() as client:
            client.send(request("allow", "api", "gone", 0) * 50)
    assert neighbour.ask("ping") == "pong"
    wait_until(lambda: agent.metric("connections") == 1, "only the neighbour is left")


# Clients that do not read


class Pump:
    """Sends requests as fast as the agent takes them, and never reads."""

    REQUESTS = request("stats") * 100

    def __init__(self, agent: Agent) -> None:
        self.client = agent.connect()
        self.client.socket.setblocking(False)
        self.sent = 0
        self.is_cut_off = False

    def push(self) -> None:
        try:
            for _ in range(50):
                self.sent += self.client.socket.send(self.REQUESTS)
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self.is_cut_off = True


def test_clients_that_never_read_are_paused_then_closed_while_others_are_served(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    with agent.connect() as neighbour:
        assert neighbour.ask("ping") == "pong"
        before = agent.resident_bytes()
        highest = before
        answered = 0
        pumps = [Pump(agent) for _ in range(20)]

        def push_all() -> bool:
            nonlocal highest, answered
            for pump in pumps:
                pump.push()
            assert neighbour.ask("ping") == "pong"
            answered += 1
            highest = max(highest, agent.resident_bytes())
            return all(pump.is_cut_off for pump in pumps)

        wait_until(push_all, "all of them are cut off", within=40)
        for pump in pumps:
            pump.client.close()
        assert answered > 20, "others are served meanwhile"
        assert max(pump.sent for pump in pumps) < 4 * MIB, "a client that does not read is not read either"
        if not is_sanitized():
            # 64 KiB of replies each, one report beyond it, and what a socket holds, 20 times over
            assert highest - before < 32 * MIB
        assert agent.metric("connections_overflowed_total") == 20
        wait_until(lambda: agent.metric("connections") == 1, "only the neighbour is left")


def test_a_client_that_reads_slowly_gets_all_of_its_replies(agent: Agent, neighbour: Client) -> None:
    count = 20_000
    with agent.connect() as client:
        sender = threading.Thread(
            target=client.send, args=(b"".join(request("peek", "api", "slow", msgid=n) for n in range(count)),)
        )
        sender.start()
        time.sleep(0.5)
        seen: set[int] = set()
        while len(seen) < count:
            seen.add(client.receive().msgid)
            if len(seen) % 1000 == 0:
                time.sleep(0.02)
                assert neighbour.ask("ping") == "pong"
        sender.join()
        assert seen == set(range(count))
        assert client.stays_silent()


def test_a_flood_from_one_client_does_not_starve_another(agent: Agent, neighbour: Client) -> None:
    with agent.connect() as flooder:
        flooder.socket.setblocking(False)
        burst = request("allow", "api", "flood") * 500
        waits = []
        answered = 0
        stop = time.monotonic() + 2.0
        rest = b""
        while time.monotonic() < stop:
            readable, writable, _ = select.select([flooder.socket], [flooder.socket], [], 0.1)
            if readable:
                answered += len(flooder.socket.recv(MIB))
            if writable:
                rest = rest or burst
                rest = rest[flooder.socket.send(rest) :]
            asked = time.monotonic()
            assert neighbour.ask("ping") == "pong"
            waits.append(time.monotonic() - asked)
        assert answered > 100_000, "the flood was served too"
        assert sorted(waits)[len(waits) // 2] < 0.1
        assert max(waits) < 1.5


def test_a_client_may_hang_up_while_it_is_paused(agent: Agent, neighbour: Client) -> None:
    for _ in range(20):
        pump = Pump(agent)
        pump.push()
        pump.client.close()
    wait_until(lambda: agent.metric("connections") == 1, "only the neighbour is left")


def test_a_paused_client_that_half_closes_gets_every_reply_once_it_reads(agent: Agent) -> None:
    # Some 200 KiB of requests whose replies are larger: the agent stops reading in the middle of them.
    count = 6_000
    with agent.connect() as client:
        sent = threading.Event()

        def send() -> None:
            client.send(b"".join(request("allow", "api", "paused", 0, msgid=n) for n in range(count)))
            client.half_close()
            sent.set()

        sender = threading.Thread(target=send)
        sender.start()
        sent.wait(0.5)
        assert sorted(client.receive_many(count)) == list(range(count))
        sender.join()
        assert client.is_hung_up()


def test_no_reply_follows_the_end_of_a_connection(agent: Agent) -> None:
    with agent.connect() as client:
        client.send(UNENDING["nine levels"][0] + request("ping", msgid=8) * 3)
        assert client.receive().msgid == 7
        with pytest.raises(HungUp):
            client.receive()


def test_connecting_without_a_word_costs_nothing_but_a_place(agent: Agent, neighbour: Client) -> None:
    silent = [socket.socket(socket.AF_UNIX) for _ in range(300)]
    for connection in silent:
        connection.connect(str(agent.path))
    wait_until(lambda: agent.metric("connections") == 301, "all are connected")
    assert neighbour.ask("ping") == "pong"
    for connection in silent:
        connection.close()
    wait_until(lambda: agent.metric("connections") == 1, "all places are free again")
