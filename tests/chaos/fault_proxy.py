# SPDX-License-Identifier: MIT
"""A proxy between an agent and its Redis that misbehaves as it is told.

A mood holds for every connection from the moment it is set, for those that are there as for new ones. What a mood has
done to a connection stays done: a reply of which a part is missing is not made whole.

Its chances are seeded. Runs in a process of its own.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from child import Child

MOODS = {
    "pass": "hands everything on",
    "delay": "hands everything on, each piece up to 80 ms late",
    "dribble": "hands replies on byte by byte",
    "cut": "hangs up in the middle of a reply",
    "reset": "resets the connection in the middle of a reply",
    "garbage": "answers something that is no reply",
    "swallow": "takes what the agent sends, keeps it to itself and never answers",
    "mute": "hands on what the agent sends, and throws the replies away",
    "half_open": "takes connections that are there no more: what arrives for them is reset",
    "refuse": "resets new connections and those that are there",
}

_LONGEST_DELAY = 0.08
_SIZE = 65536
_ANSWER_SECONDS = 5.0


def _garbage(dice: random.Random) -> bytes:
    """Nothing that could pass for the answer to a script, and so for those of the pieces that it replaces."""
    kinds: list[Callable[[], bytes]] = [
        lambda: dice.randbytes(dice.randrange(1, 200)),
        lambda: b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
        lambda: b"*%d\r\n" % dice.randrange(10**6, 10**9),
        lambda: b"$%d\r\n" % dice.randrange(10**8, 10**10),
        lambda: b"*1\r\n" * dice.randrange(10, 5000),
        lambda: b":%d\r\n" % dice.randrange(-(2**63), 2**63),
        lambda: b"+OK\r\n",
        lambda: b"$-1\r\n",
        lambda: b"*-1\r\n",
        lambda: b"*3\r\n:1\r\n$-7\r\n:2\r\n",
        lambda: b"\r\n" * dice.randrange(1, 50),
    ]
    return dice.choice(kinds)()


class Accepted(NamedTuple):
    at: int  # time.monotonic_ns()
    mood: str


class Proxy:
    """Listens on a free port of the loopback address; `close` ends it."""

    def __init__(self, upstream_port: int, seed: str) -> None:
        self._child = Child(_serve, upstream_port, seed)
        self.port = int(self._child.receive(_ANSWER_SECONDS))

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def set_mood(self, mood: str) -> None:
        """In force when this returns."""
        assert mood in MOODS, mood
        self._ask("mood", mood)

    def reset_all(self) -> None:
        """Ends every connection, and forgets those whose replies it kept."""
        self.set_mood("refuse")
        self.set_mood("pass")

    def accepted(self) -> list[Accepted]:
        """Every connection so far."""
        return [Accepted(*entry) for entry in self._ask("accepted")]

    def close(self) -> None:
        self._child.close()

    def _ask(self, *words: str) -> Any:
        self._child.pipe.send(words)
        return self._child.receive(_ANSWER_SECONDS)


def _serve(pipe: Connection, upstream_port: int, seed: str) -> None:
    asyncio.run(_Server(pipe, upstream_port, random.Random(seed)).run())


class _Pair:
    """One connection of the agent's, and the one to Redis that belongs to it."""

    def __init__(self, writer: asyncio.StreamWriter, upstream: asyncio.StreamWriter | None) -> None:
        self.writer = writer
        self.upstream = upstream

    def hang_up(self) -> None:
        self.writer.close()
        self._leave_upstream()

    def reset(self) -> None:
        connection: socket.socket = self.writer.get_extra_info("socket")
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass  # it is closed already
        self.writer.transport.abort()
        self._leave_upstream()

    def _leave_upstream(self) -> None:
        if self.upstream is not None:
            self.upstream.close()


class _Server:
    def __init__(self, pipe: Connection, upstream_port: int, dice: random.Random) -> None:
        self._pipe = pipe
        self._upstream_port = upstream_port
        self._dice = dice
        self._mood = "pass"
        self._accepted: list[tuple[int, str]] = []
        self._pairs: set[_Pair] = set()
        self._replies: dict[str, Callable[[_Pair, bytes], Awaitable[None]]] = {
            "dribble": self._dribble,
            "cut": self._cut,
            "reset": self._cut,
            "garbage": self._speak_garbage,
            "swallow": self._drop,
            "mute": self._drop,
            "half_open": self._reset,
            "refuse": self._reset,
        }
        self._has_ended = asyncio.Event()

    async def run(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=512)
        self._pipe.send(server.sockets[0].getsockname()[1])
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._obey)
        await self._has_ended.wait()

    def _obey(self) -> None:
        try:
            command, *words = self._pipe.recv()
        except EOFError:
            return self._has_ended.set()
        if command == "mood":
            self._mood = words[0]
            if self._mood == "refuse":
                for pair in list(self._pairs):
                    pair.reset()
        self._pipe.send(self._accepted if command == "accepted" else None)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._accepted.append((time.monotonic_ns(), self._mood))
        pair = _Pair(writer, None)
        if self._mood == "refuse":
            return pair.reset()
        self._pairs.add(pair)
        try:
            from_redis, pair.upstream = await asyncio.open_connection("127.0.0.1", self._upstream_port)
            await asyncio.gather(self._hand_on_requests(reader, pair), self._hand_on_replies(from_redis, pair))
        except OSError:
            pass  # either side has gone, so the other goes as well
        finally:
            self._pairs.discard(pair)
            pair.hang_up()

    async def _hand_on_requests(self, reader: asyncio.StreamReader, pair: _Pair) -> None:
        assert pair.upstream is not None
        while data := await reader.read(_SIZE):
            match self._mood:
                case "half_open" | "refuse":
                    return pair.reset()
                case "swallow":
                    continue
                case "delay":
                    await asyncio.sleep(self._dice.uniform(0, _LONGEST_DELAY))
            pair.upstream.write(data)
            await pair.upstream.drain()
        pair.hang_up()

    async def _hand_on_replies(self, reader: asyncio.StreamReader, pair: _Pair) -> None:
        while data := await reader.read(_SIZE):
            await self._replies.get(self._mood, self._pass)(pair, data)
        pair.hang_up()

    # Moods, of replies

    async def _pass(self, pair: _Pair, data: bytes) -> None:
        if self._mood == "delay":
            await asyncio.sleep(self._dice.uniform(0, _LONGEST_DELAY))
        pair.writer.write(data)
        await pair.writer.drain()

    async def _dribble(self, pair: _Pair, data: bytes) -> None:
        for place in range(len(data)):
            if pair.writer.transport.is_closing():
                return
            pair.writer.write(data[place : place + 1])
            await asyncio.sleep(0)

    async def _cut(self, pair: _Pair, data: bytes) -> None:
        pair.writer.write(data[: self._dice.randrange(len(data))])
        await asyncio.sleep(0)
        if self._mood == "cut":
            pair.hang_up()
        else:
            pair.reset()

    async def _speak_garbage(self, pair: _Pair, data: bytes) -> None:
        pair.writer.write(_garbage(self._dice))
        await pair.writer.drain()

    async def _drop(self, pair: _Pair, data: bytes) -> None:
        pass

    async def _reset(self, pair: _Pair, data: bytes) -> None:
        pair.reset()
