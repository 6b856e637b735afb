# SPDX-License-Identifier: MIT
"""Fixtures: racks of agents and Redis servers, ended and checked whatever the test did."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from daemon import Rack
from redis_server import RedisServer

MakeRedis = Callable[..., RedisServer]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None]:
    """Nothing of ours is in Redis for ever, whatever the test was about. Looked at before the fixtures end."""
    lasting = {key for server in RedisServer.running for key in server.keys_without_ttl()}
    yield
    assert not lasting, f"keys without a TTL: {sorted(lasting)}"


def _directory(cleanup: ExitStack) -> Path:
    """A short path: a socket's may have 107 bytes."""
    directory = Path(tempfile.mkdtemp(prefix="allowd-e2e-"))
    cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
    return directory


@pytest.fixture
def rack() -> Iterator[Rack]:
    """Agents of one test."""
    with ExitStack() as cleanup:
        agents = Rack(_directory(cleanup))
        cleanup.callback(agents.close)
        yield agents


@pytest.fixture(scope="module")
def shared_rack() -> Iterator[Rack]:
    """Agents that the tests of a module share."""
    with ExitStack() as cleanup:
        agents = Rack(_directory(cleanup))
        cleanup.callback(agents.close)
        yield agents


@pytest.fixture
def make_redis() -> Iterator[MakeRedis]:
    """Makes Redis servers for one test; they are not running until start()."""
    with ExitStack() as cleanup:
        directory = _directory(cleanup)
        made = 0

        def make(*options: str, password: str = "") -> RedisServer:
            nonlocal made
            made += 1
            server = RedisServer(directory / str(made), *options, password=password)
            cleanup.callback(server.close)
            return server

        yield make


@pytest.fixture
def redis(make_redis: MakeRedis) -> RedisServer:
    """A running Redis for one test."""
    server = make_redis()
    server.start()
    return server


@pytest.fixture(scope="module")
def shared_redis() -> Iterator[RedisServer]:
    """A running Redis that the tests of a module share."""
    with ExitStack() as cleanup:
        server = RedisServer(_directory(cleanup) / "redis")
        cleanup.callback(server.close)
        server.start()
        yield server
