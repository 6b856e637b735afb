# SPDX-License-Identifier: MIT
"""A server at Redis's place that is broken or hostile. It never harms the agent, and every query is answered.

Only a fake server is needed here.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

from daemon import ASK_ALWAYS, Agent, Rack, is_sanitized
from fake_redis import SHA, Behaviour, FakeRedis, Peer, honest_answer, integers, questions_in
from processes import wait_until
from resp import encode
from rpc import Decision

LIMITS = """
[limits.strict]
rate = "10/h"
on_failure = "deny"

[limits.lax]
rate = "10/h"
on_failure = "allow"
"""
DEADLINE = 0.1  # seconds
MIB = 1024 * 1024


def after_sign_in(answer: Callable[[list[bytes]], bytes]) -> Behaviour:
    """Answers like a Redis until scripts come, and those with `answer`."""

    def serve(peer: Peer) -> None:
        while True:
            peer.send(answer(peer.sign_in()))

    return serve


def at_once(data: bytes) -> Behaviour:
    """Says `data` unasked, then waits for the agent to go."""

    def serve(peer: Peer) -> None:
        peer.send(data)
        peer.socket.recv(1)
        peer.socket.settimeout(5)
        while peer.socket.recv(65536):
            pass

    return serve


def answering(word: bytes, answer: bytes) -> Behaviour:
    """Answers like a Redis, but commands of that name with `answer`."""

    def serve(peer: Peer) -> None:
        while True:
            command = peer.read_command()
            if command[0] == word:
                peer.send(answer)
            elif command[0] == b"EVALSHA":
                peer.send(integers(*[0] * questions_in(command), 0))
            else:
                peer.send(honest_answer(command))

    return serve


def never_answering(peer: Peer) -> None:
    while peer.socket.recv(65536):
        pass


def falling_silent(peer: Peer) -> None:
    peer.sign_in()
    never_answering(peer)


def dripping(peer: Peer) -> None:
    """Right answers, one byte at a time."""
    while True:
        command = peer.sign_in(peer.drip)
        peer.drip(integers(*[360_000_000] * questions_in(command), 0))


def dripping_without_end(peer: Peer) -> None:
    peer.sign_in()
    while True:
        peer.drip(b"$-")
        peer.drip(b"9" * 20, 0.02)


def flooding(peer: Peer) -> None:
    peer.sign_in()
    peer.send(b"$900000000\r\n")
    while True:
        peer.send(b"x" * 65536)


def flooding_with_answers(peer: Peer) -> None:
    peer.sign_in()
    while True:
        peer.send(b":1\r\n" * 10_000)


def closing_at_random(peer: Peer) -> None:
    dice = random.Random(peer.number)
    answers_left = dice.randint(0, 12)

    def send(data: bytes) -> None:
        nonlocal answers_left
        answers_left -= 1
        if answers_left < 0:
            peer.send(data[: dice.randint(0, len(data))])
            raise ConnectionAbortedError
        peer.send(data)

    while True:
        command = peer.sign_in(send)
        send(integers(*[0] * questions_in(command), 0))


def talking_nonsense(peer: Peer) -> None:
    dice = random.Random(peer.number)
    pieces = [b"*", b"$", b":", b"-ERR ", b"+", b"\r\n", b"1", b"-1", b"3", b"9" * 20, b"\x00", b"%2", b"_"]
    peer.sign_in()
    while True:
        peer.send(b"".join(dice.choices(pieces, k=dice.randint(1, 30))))
        time.sleep(0.005)


def drop_the_script(peer: Peer) -> None:
    """A server that never knows the script."""
    while True:
        peer.sign_in()
        peer.send(b"-NOSCRIPT No matching script. Please use EVAL.\r\n")


def nested(levels: int) -> bytes:
    return b"*1\r\n" * levels + b":1\r\n"


SIGNING_IN: dict[str, Behaviour] = {
    "closes at once": lambda peer: None,
    "never answers": never_answering,
    "speaks first": at_once(b"+OK\r\n"),
    "speaks HTTP": at_once(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
    "speaks garbage": at_once(random.Random(1).randbytes(4096)),
    "speaks TLS": at_once(bytes.fromhex("15030100020228")),
    "refuses everything": answering(b"CLIENT", b"-ERR no\r\n" * 5),
    "refuses to load": answering(b"SCRIPT", b"-NOPERM this user has no permissions\r\n"),
    "loads an array": answering(b"SCRIPT", nested(2)),
    "loads a nil": answering(b"SCRIPT", b"$-1\r\n"),
    "loads a long name": answering(b"SCRIPT", b"$500000\r\n" + b"s" * 500_000 + b"\r\n"),
    "tells no time": answering(b"TIME", b"$-1\r\n"),
    "tells an empty time": answering(b"TIME", b"*0\r\n"),
    "tells the time in integers": answering(b"TIME", integers(1, 2)),
    "tells the time in nils": answering(b"TIME", b"*2\r\n$-1\r\n$-1\r\n"),
    "tells a negative time": answering(b"TIME", b"*2\r\n$2\r\n-5\r\n$1\r\n0\r\n"),
    "tells a huge time": answering(b"TIME", b"*2\r\n$19\r\n9223372036854775807\r\n$1\r\n0\r\n"),
    "tells a time of a billion microseconds": answering(b"TIME", b"*2\r\n$1\r\n5\r\n$10\r\n1000000000\r\n"),
}

ANSWERING_SCRIPTS: dict[str, Behaviour] = {
    "falls silent": falling_silent,
    "closes at random": closing_at_random,
    "drips": dripping,
    "drips a length without end": dripping_without_end,
    "floods one reply": flooding,
    "floods replies": flooding_with_answers,
    "talks nonsense": talking_nonsense,
    "answers a huge array": after_sign_in(lambda _: b"*100000000\r\n"),
    "answers a negative array": after_sign_in(lambda _: b"*-5\r\n"),
    "answers an array beyond 64 bits": after_sign_in(lambda _: b"*99999999999999999999\r\n"),
    "answers a huge bulk": after_sign_in(lambda _: b"$9000000000000000000\r\n"),
    "answers a negative bulk": after_sign_in(lambda _: b"$-7\r\n"),
    "answers a deep nest": after_sign_in(lambda _: nested(200_000)),
    "answers a line without end": after_sign_in(lambda _: b"+" + b"x" * 3_000_000),
    "answers nothing": after_sign_in(lambda _: b"*0\r\n"),
    "answers nil": after_sign_in(lambda _: b"*-1\r\n"),
    "answers OK": after_sign_in(lambda _: b"+OK\r\n"),
    "answers too few": after_sign_in(lambda command: integers(*[0] * (questions_in(command) - 1), 0)),
    "answers too many": after_sign_in(lambda command: integers(*[0] * (questions_in(command) + 1), 0)),
    "answers text": after_sign_in(lambda c: encode(*[1] * (questions_in(c) + 1))),
    "answers huge numbers": after_sign_in(lambda c: integers(*[2**63 - 1] * questions_in(c), 2**63 - 1)),
    "answers the most negative numbers": after_sign_in(lambda c: integers(*[-(2**63)] * questions_in(c), -(2**63))),
    "answers numbers beyond 64 bits": after_sign_in(lambda c: integers(*[2**70] * questions_in(c), 0)),
    "answers twice": after_sign_in(lambda c: integers(*[0] * questions_in(c), 0) * 2),
    "answers as RESP3": after_sign_in(lambda c: b">2\r\n+message\r\n+x\r\n%1\r\n+a\r\n_\r\n"),
    "has always lost the script": drop_the_script,
    "is a replica": after_sign_in(lambda _: b"-READONLY You can't write against a read only replica.\r\n"),
    "is a stale replica": after_sign_in(lambda _: b"-MASTERDOWN Link with MASTER is down\r\n"),
    "is loading": after_sign_in(lambda _: b"-LOADING Redis is loading the dataset in memory\r\n"),
    "is out of memory": after_sign_in(lambda _: b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"),
    "is busy": after_sign_in(lambda _: b"-BUSY Redis is busy running a script.\r\n"),
    "has a new error each time": after_sign_in(lambda c: b"-E%d boo\r\n" % random.randrange(10**9)),
    "has an endless error": after_sign_in(lambda _: b"-" + b"E" * 900_000 + b"\r\n"),
    "has an empty error": after_sign_in(lambda _: b"-\r\n"),
}


def check_answer(limit: str, decision: Decision) -> None:
    if decision.source == "store":
        assert decision.limit == 10
        assert 0 <= decision.remaining <= 10
    elif limit == "lax":
        assert decision[:7] == (True, 10, 10, 0, 0, "ok", "fallback")
    else:
        assert (decision.allowed, decision.verdict, decision.source) == (False, "unavailable", "fallback")
        assert decision.retry_after_us > 0


def ask_for_a_while(agent: Agent, seconds: float) -> int:
    """Asks from three connections, a few queries at a time; every one has to be answered, and in time."""
    clients = [agent.connect() for _ in range(3)]
    asked = 0
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        sent = time.monotonic()
        for client in clients:
            for number in range(10):
                client.post("allow", ("strict", "lax")[number % 2], f"k{number}")
        for client in clients:
            for msgid, reply in client.receive_many(10).items():
                assert reply.error is None
                check_answer(("strict", "lax")[(msgid - 1) % 2], Decision(*reply.result))
        assert time.monotonic() - sent < DEADLINE + 1.0
        asked += 30
        time.sleep(0.01)
    for client in clients:
        assert client.stays_silent(0.05), "nothing is answered twice"
        client.close()
    return asked


def check_that_it_copes(rack: Rack, behaviour: Behaviour, *, signs_in: bool) -> None:
    with FakeRedis(behaviour) as server:
        agent = rack.start(LIMITS, agent=f'deadline = "{int(DEADLINE * 1000)}ms"', redis=server.config + ASK_ALWAYS)
        before = agent.resident_bytes()
        began = time.monotonic()
        wait_until(lambda: server.connections > 0, "the agent has come")
        if signs_in:
            wait_until(lambda: agent.metric("redis_connects_total") > 0, "it is signed in")
        assert ask_for_a_while(agent, 0.6) > 30
        if signs_in:

            def was_asked() -> bool:
                return ask_for_a_while(agent, 0.1) > 0 and agent.metric("redis_scripts_total") > 0

            wait_until(was_asked, "the server was asked")
        if not is_sanitized():
            assert agent.resident_bytes() - before < 24 * MIB
        # At most three connections a second, whatever happens to them.
        assert server.connections <= 3 * (time.monotonic() - began + 1) + 2
        assert agent.ask("ping") == "pong"
        assert agent.admin("key strict k0").startswith("limit: ")
        agent.stop()


@pytest.mark.parametrize("name", SIGNING_IN)
def test_every_query_is_answered_whatever_happens_while_signing_in(rack: Rack, name: str) -> None:
    check_that_it_copes(rack, SIGNING_IN[name], signs_in=False)


@pytest.mark.parametrize("name", ANSWERING_SCRIPTS)
def test_every_query_is_answered_whatever_the_server_answers(rack: Rack, name: str) -> None:
    check_that_it_copes(rack, ANSWERING_SCRIPTS[name], signs_in=True)


def test_right_answers_that_drip_are_answers(rack: Rack) -> None:
    with FakeRedis(dripping) as server:
        agent = rack.start(LIMITS, agent='deadline = "5s"', redis=server.config + ASK_ALWAYS)
        agent.wait_for_redis()
        decision = agent.allow("strict", "k")
        assert (decision.remaining, decision.source) == (8, "store"), "one was used before, and one was taken"


def test_a_server_that_recovers_is_used_again(rack: Rack) -> None:
    is_sane = threading.Event()

    def serve(peer: Peer) -> None:
        behaviour = answering(b"nothing", b"") if is_sane.is_set() else talking_nonsense
        behaviour(peer)

    with FakeRedis(serve) as server:
        agent = rack.start(LIMITS, agent='deadline = "100ms"', redis=server.config + ASK_ALWAYS)
        ask_for_a_while(agent, 0.5)
        is_sane.set()
        wait_until(lambda: agent.allow("strict", "k").source == "store", "the store answers")


def test_a_script_that_was_lost_is_loaded_and_asked_again_once(rack: Rack) -> None:
    calls: list[bytes] = []
    loads: list[bytes] = []

    def serve(peer: Peer) -> None:
        while True:
            command = peer.read_command()
            if command[0] == b"SCRIPT":
                loads.append(command[2])
            if command[0] != b"EVALSHA":
                peer.send(honest_answer(command))
                continue
            calls.append(command[1])
            known = integers(*[360_000_000] * questions_in(command), 0)
            peer.send(b"-NOSCRIPT No matching script.\r\n" if len(calls) == 1 else known)

    with FakeRedis(serve) as server:
        agent = rack.start(LIMITS, agent='deadline = "5s"', redis=server.config + ASK_ALWAYS)
        agent.wait_for_redis()
        assert agent.allow("strict", "k").source == "store"
        assert calls == [SHA, SHA]
        assert len(loads) == 2 and loads[0] == loads[1]


def test_a_question_whose_connection_was_lost_is_not_asked_again(rack: Rack) -> None:
    asked: list[bytes] = []

    def serve(peer: Peer) -> None:
        while True:
            command = peer.sign_in()
            asked.extend(command[3 : 3 + questions_in(command)])
            if peer.number == 0:
                return
            peer.send(integers(*[360_000_000] * questions_in(command), 0))

    with FakeRedis(serve) as server:
        agent = rack.start(LIMITS, agent='deadline = "10s"', redis=server.config + ASK_ALWAYS)
        agent.wait_for_redis()
        lost = agent.allow("strict", "lost")
        assert (lost.verdict, lost.source) == ("unavailable", "fallback")
        wait_until(lambda: server.connections > 1 and not agent.ask("info")["degraded"], "it is back")
        assert agent.allow("strict", "next").source == "store"
        assert [key.split(b":")[-1] for key in asked] == [b"lost", b"next"], "it may have been charged"
