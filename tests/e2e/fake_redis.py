# SPDX-License-Identifier: MIT
"""A server that speaks just enough of Redis's protocol to be believed, and then does what a test wants.

A behaviour gets each connection as a Peer: it reads commands and sends whatever bytes it likes, until it returns
or the connection breaks. `sign_in` plays the honest server up to the first script.

Threads    One that accepts, one per connection; close() ends them all.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from resp import Stream

SHA = b"0123456789abcdef0123456789abcdef01234567"


class Peer:
    """One connection of the agent's."""

    def __init__(self, connection: socket.socket, number: int) -> None:
        self.socket = connection
        self.number = number  # counts connections from 0
        self._stream = Stream(connection)

    def read_command(self) -> list[bytes]:
        command = self._stream.read()
        assert isinstance(command, list)
        return command

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def drip(self, data: bytes, pause: float = 0.0005) -> None:
        """One byte at a time."""
        for byte in data:
            self.send(bytes([byte]))
            time.sleep(pause)

    def sign_in(self, send: Callable[[bytes], None] | None = None) -> list[bytes]:
        """Answers as a Redis would until a script is to be run, whose command is returned."""
        send = send or self.send
        while True:
            command = self.read_command()
            if command[0] == b"EVALSHA":
                return command
            send(honest_answer(command))


def honest_answer(command: list[bytes]) -> bytes:
    """The answer to anything but a script."""
    if command[0] == b"TIME":
        now = time.time_ns() // 1000
        parts = [b"%d" % (now // 1_000_000), b"%d" % (now % 1_000_000)]
        return b"*2\r\n" + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    if command[0] == b"SCRIPT":
        return b"$%d\r\n%s\r\n" % (len(SHA), SHA)
    return b"+OK\r\n"


def questions_in(command: list[bytes]) -> int:
    """How many keys an EVALSHA is about."""
    return int(command[2])


def integers(*numbers: int) -> bytes:
    return b"*%d\r\n" % len(numbers) + b"".join(b":%d\r\n" % number for number in numbers)


Behaviour = Callable[[Peer], Any]


class FakeRedis:
    """Listens on a free port of the loopback address."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self.port = int(self._listener.getsockname()[1])
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> FakeRedis:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def config(self) -> str:
        """The lines of an agent's [redis] table."""
        return f'url = "redis://127.0.0.1:{self.port}"\nreconnect_max = "250ms"'

    @property
    def connections(self) -> int:
        """How many there have been so far."""
        with self._lock:
            return len(self._connections)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for connection in [self._listener, *self._connections]:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass  # it has ended already
        for thread in list(self._threads):
            thread.join()
        for connection in [self._listener, *self._connections]:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_closed:
                    connection.close()
                    return
                number = len(self._connections)
                self._connections.append(connection)
                thread = threading.Thread(target=self._serve, args=(Peer(connection, number),))
                self._threads.append(thread)
                thread.start()

    def _serve(self, peer: Peer) -> None:
        try:
            self._behaviour(peer)
        except OSError:
            pass  # the agent has had enough
        finally:
            try:
                peer.socket.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class FakeSentinel(FakeRedis):
    """Names that port as the master's, whatever is there."""

    def __init__(self, named: int) -> None:
        self.named = named
        super().__init__(self._tell)

    @property
    def config(self) -> str:
        nodes = f'nodes = [ "redis://127.0.0.1:{self.port}" ]'
        return f'sentinel = {{ master = "main", {nodes} }}\nreconnect_max = "250ms"'

    def _tell(self, peer: Peer) -> None:
        while True:
            command = peer.read_command()
            if command[0] == b"SENTINEL":
                port = str(self.named).encode()
                peer.send(b"*2\r\n$9\r\n127.0.0.1\r\n$%d\r\n%s\r\n" % (len(port), port))
            else:
                peer.send(honest_answer(command))
