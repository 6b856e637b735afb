# SPDX-License-Identifier: MIT
"""The decision script under each Lua that servers have: worked and random histories come out as the oracle says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from agent import Replayer, default_binary
from histories import ALGORITHMS, History, Wishes, random_history
from lua_server import VERSIONS, LuaServer
from run import Bench, run
from test_oracle import worked_histories

_SEED = 1
_STEPS = 200  # of a history
_HISTORIES = 2  # for each algorithm


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[LuaServer]:
    with LuaServer(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def bench(server: LuaServer) -> Iterator[Bench]:
    with ExitStack() as cleanup:
        directory = Path(cleanup.enter_context(TemporaryDirectory(prefix="allowd-property-")))
        made = Bench({"redis": Replayer(default_binary(), directory, f"{server.url}/0")}, None)
        cleanup.callback(made.close)
        yield made


def test_worked_histories_come_out_right(bench: Bench, server: LuaServer) -> None:
    for case in worked_histories():
        steps = [{name: value for name, value in step.items() if name != "expect"} for step in case["steps"]]
        assert bench.judge_alone(History.answered(case["limit"], steps)) is None, case["id"]
    assert server.keys.names() == []


def test_random_histories_come_out_as_in_rationals(bench: Bench, server: LuaServer) -> None:
    before = server.runs
    dice = random.Random(_SEED)
    histories = {
        number: random_history(dice, _STEPS, Wishes([algorithm]))
        for number, algorithm in enumerate(ALGORITHMS * _HISTORIES)
    }
    steps = run(bench, [histories], _SEED)
    assert steps >= _STEPS * len(histories)
    assert server.runs - before > 0.9 * steps, "each step is a script's, but for the changes of limits"
