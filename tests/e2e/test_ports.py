# SPDX-License-Identifier: MIT
"""What the ports that servers are given here have to be: theirs alone, for as long as a test may start one there."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import ports


def test_no_outgoing_connection_takes_one() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    if first <= 20_000:
        pytest.skip(f"outgoing connections use all of {first} to {last} here")
    assert all(ports.free_port() < first for _ in range(20))


def test_no_process_is_given_another_ones() -> None:
    """Not even while nobody listens there."""
    ask = "import ports, sys; sys.exit(ports._claim(int(sys.argv[1])) is None)"

    def can_have(port: int) -> bool:
        return subprocess.run([sys.executable, "-c", ask, str(port)], cwd=Path(ports.__file__).parent).returncode == 0

    mine = ports.free_port()
    assert not can_have(mine)
    ports._held.pop().close()
    assert can_have(mine)


def test_one_that_is_listened_at() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert ports._claim(server.getsockname()[1]) is None


def test_one_beside_another() -> None:
    port = ports.free_port(10_000)
    assert ports._claim(port) is None and ports._claim(port + 10_000) is None
