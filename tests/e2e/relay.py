# SPDX-License-Identifier: MIT
"""A way to a server that hands on its answers late, or can be shut.

Threads    One that accepts, two per connection; close() ends them all.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable


class Relay:
    """Listens on a free port of the loopback address, for a server on another one."""

    def __init__(self, upstream_port: int) -> None:
        self.delay = 0.0  # seconds; of every piece of an answer that arrives from now on
        self.first_delay = 0.0  # the same, of each connection's first piece only
        self._is_open = True
        self._upstream_port = upstream_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._is_closed = False
        self.port = int(self._listener.getsockname()[1])
        self._run(self._accept)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def shut(self) -> None:
        """Ends what is connected. Who connects from now on is hung up on."""
        with self._lock:
            self._is_open = False
            for one in self._sockets[1:]:
                _shut(one)

    def open(self) -> None:
        with self._lock:
            self._is_open = True

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            sockets, threads = list(self._sockets), list(self._threads)
        for one in sockets:
            _shut(one)
        for thread in threads:
            thread.join()
        for one in sockets:
            one.close()

    def _run(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._is_closed:
                    return near.close()
                self._sockets.append(near)
                if not self._is_open:
                    _shut(near)
                    continue
                try:
                    far = socket.create_connection(("127.0.0.1", self._upstream_port))
                except OSError:
                    _shut(near)
                    continue
                self._sockets.append(far)
                self._run(self._hand_on, near, far, False)
                self._run(self._hand_on, far, near, True)

    def _hand_on(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        try:
            once = self.first_delay
            while data := source.recv(65536):
                if is_answer:
                    time.sleep(self.delay + once)
                    once = 0.0
                sink.sendall(data)
        except OSError:
            pass  # either side has gone, so the other goes as well
        _shut(source)
        _shut(sink)


def _shut(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has ended already
