# SPDX-License-Identifier: MIT
"""A scripted agent on a real Unix socket."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any, Callable, List, Optional

import msgpack

PATIENCE = 20.0
"""Seconds that no step of a test ever needs; what waits longer is stuck."""

OK = [True, 10, 9, 0, 100000, "ok", "local", "", 1000000, 100000]
LIMITED = [False, 10, 0, 100000, 1000000, "limited", "store", "", 1000000, 100000]


def reply_bytes(msgid: Any, result: Any = OK, error: Any = None) -> bytes:
    return msgpack.packb([1, msgid, error, result])


class Peer:
    """The agent's end of one connection, for a script to drive."""

    def __init__(self, agent: "FakeAgent", sock: socket.socket, index: int) -> None:
        self.agent = agent
        self.index = index
        self.socket = sock
        self._unpacker = msgpack.Unpacker()

    def request(self) -> Optional[list]:
        """The next request, or None when the client has closed."""
        while True:
            try:
                request = self._unpacker.unpack()
            except msgpack.OutOfData:
                try:
                    chunk = self.socket.recv(65536)
                except ConnectionResetError:
                    chunk = b""
                if not chunk:
                    self.agent.client_closed.append(self.index)
                    return None
                self._unpacker.feed(chunk)
                continue
            self.agent.requests.append(request)
            return request

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reply(self, request: list, result: Any = OK, error: Any = None) -> None:
        self.send(reply_bytes(request[1], result, error))
        self.agent.replied.set()

    def wait_for_close(self) -> None:
        while self.request() is not None:
            pass

    def send_until_closed(self, data: bytes) -> None:
        """For what the client does not read to its end."""
        try:
            self.send(data)
            self.wait_for_close()
        except OSError:
            self.agent.client_closed.append(self.index)


Script = Callable[[Peer], None]


class FakeAgent:
    """Listens at ``path`` and runs ``scripts[i]`` on its i-th connection, the last one on all further.

    A connection is closed when its script returns. A script that fails fails the test, at ``stop``.
    """

    def __init__(self, path: str, *scripts: Script, backlog: int = 64) -> None:
        self.path = path
        self.requests: List[list] = []
        self.client_closed: List[int] = []
        self.connections = 0
        self.failures: List[BaseException] = []
        self.replied = threading.Event()
        """Set as soon as a script has replied."""
        self.released = threading.Event()
        """For scripts to wait on until the test says so, and at the latest until ``stop``."""
        self._scripts = scripts
        self._peers: List[socket.socket] = []
        self._threads: List[threading.Thread] = []
        self._stopping = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(backlog)
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            if self._stopping:
                sock.close()
                return
            sock.settimeout(PATIENCE)
            peer = Peer(self, sock, self.connections)
            script = self._scripts[min(self.connections, len(self._scripts) - 1)]
            self.connections += 1
            self._peers.append(sock)
            thread = threading.Thread(target=self._run, args=(script, peer), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, script: Script, peer: Peer) -> None:
        try:
            script(peer)
        except OSError as error:
            if not self._stopping:
                self.failures.append(error)
        except BaseException as error:
            self.failures.append(error)
        finally:
            peer.socket.close()

    def stop(self) -> None:
        """Closes everything and removes the socket file, as an agent that exits. Twice is fine."""
        if self._stopping:
            return
        self._stopping = True
        self.released.set()
        wake = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            wake.connect(self.path)  # closing a listener does not wake its accept()
        finally:
            wake.close()
        self._acceptor.join(PATIENCE)
        self._listener.close()
        os.unlink(self.path)
        for sock in self._peers:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        for thread in self._threads:
            thread.join(PATIENCE)
        assert not self._acceptor.is_alive()
        assert not any(thread.is_alive() for thread in self._threads)

    def __enter__(self) -> "FakeAgent":
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.stop()
        if kind is None and self.failures:
            raise self.failures[0]


def answers(result: Any = OK, error: Any = None) -> Script:
    """Answers every request alike, until the client closes."""

    def script(peer: Peer) -> None:
        while True:
            request = peer.request()
            if request is None:
                return
            peer.reply(request, result, error)

    return script


def answers_when_released(result: Any = OK) -> Script:
    """Answers one request, once the test lets it, and then waits until the client closes."""

    def script(peer: Peer) -> None:
        request = peer.request()
        assert peer.agent.released.wait(PATIENCE)
        peer.reply(request, result)
        peer.wait_for_close()

    return script


def silent(peer: Peer) -> None:
    """Reads, and never answers."""
    peer.wait_for_close()


def answers_once(peer: Peer) -> None:
    """Answers one request and closes."""
    peer.reply(peer.request())
