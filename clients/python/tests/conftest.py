# SPDX-License-Identifier: MIT
from __future__ import annotations

import contextlib
import time
from typing import Callable, Iterator

import pytest
from fake_agent import PATIENCE, FakeAgent
from on_a_loop import OnALoop

import allowd


@pytest.fixture
def socket_path(tmp_path) -> str:
    return str(tmp_path / "allowd.sock")


@pytest.fixture
def agent(socket_path) -> Iterator[Callable[..., FakeAgent]]:
    """Starts scripted agents; their scripts' failures are the test's."""
    with contextlib.ExitStack() as stack:
        yield lambda *scripts, **options: stack.enter_context(FakeAgent(socket_path, *scripts, **options))


@pytest.fixture
def blocking_client(socket_path, agent) -> Iterator[Callable[..., allowd.Client]]:
    """Makes clients, patient ones unless the test says otherwise, and closes them before the agents."""
    yield from _maker(allowd.Client, socket_path)


@pytest.fixture(params=[allowd.Client, OnALoop], ids=["blocking", "asyncio"])
def client(request, socket_path, agent) -> Iterator[Callable[..., allowd.Client]]:
    """The same, for what holds for both clients."""
    yield from _maker(request.param, socket_path)


def _maker(kind, socket_path):
    with contextlib.ExitStack() as stack:

        def make(**options):
            options.setdefault("timeout", PATIENCE)
            return stack.enter_context(kind(socket_path, **options))

        yield make


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Waits until something that another thread does has happened."""

    def wait(condition: Callable[[], bool]) -> None:
        give_up = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < give_up, "it did not happen"
            time.sleep(0.005)

    return wait
