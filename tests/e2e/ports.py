# SPDX-License-Identifier: MIT
"""Ports of 127.0.0.1 for servers that have to be told theirs before they start, and may start there again.

The kernel takes outgoing connections' ports from its ephemeral range, so that one which it just called free may be in
use when the server comes to bind it. These are below that range, and each belongs to one process of tests: it holds an
abstract socket of that number, which ends with it.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

_FIRST = 10_000
_MOST_TRIED = 1_000
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_BY_DEFAULT = 32_768  # where that range begins

_held: list[socket.socket] = []


def free_port(*beside: int) -> int:
    """A port that nobody listens at and no other test is given while this process lives; the same is true of those so
    much above it."""
    distances = (0, *beside)
    candidates = range(_FIRST, _end() - max(distances))
    for port in random.sample(candidates, _MOST_TRIED):
        claims = [_claim(port + distance) for distance in distances]
        held = [claim for claim in claims if claim is not None]
        if len(held) == len(claims):
            _held.extend(held)
            return port
        for claim in held:
            claim.close()
    raise RuntimeError(f"none of {_MOST_TRIED} ports from {candidates[0]} to {candidates[-1]} is free")


def _end() -> int:
    """Where the ephemeral range begins; if it leaves no room, most of it is as good as any."""
    first = int(_EPHEMERAL.read_text().split()[0])
    return first if first > 2 * _FIRST else _BY_DEFAULT


def _claim(port: int) -> socket.socket | None:
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0allowd-test-port-{port}")
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: old connections are no hindrance
            probe.bind(("127.0.0.1", port))
    except OSError:  # another's, or in use
        claim.close()
        return None
    return claim
