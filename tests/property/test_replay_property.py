# SPDX-License-Identifier: MIT
"""Random and worked histories through `allowd replay`, on memory and on a real Redis.

Environment  ALLOWD_BIN_DIR          where allowd is
             PROPERTY_STEPS          in total, 200,000 if unset
             PROPERTY_SEED           1 if unset
             PROPERTY_ALGORITHMS     a list with spaces; all if unset
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from agent import default_binary
from histories import ALGORITHMS, History, Wishes
from run import STORES, Bench, Plan, open_bench, run
from test_oracle import worked_histories


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with ExitStack() as cleanup:
        yield open_bench(cleanup, default_binary(), STORES)


@pytest.mark.parametrize("case", worked_histories(), ids=lambda case: str(case["id"]))
def test_a_worked_history_comes_out_right_on_both_stores(bench: Bench, case: dict[str, Any]) -> None:
    steps = [{name: value for name, value in step.items() if name != "expect"} for step in case["steps"]]
    assert bench.judge_alone(History.answered(case["limit"], steps)) is None
    assert bench.leftovers() == []


def test_random_histories_come_out_alike_on_both_stores_and_in_rationals(bench: Bench) -> None:
    algorithms = os.environ.get("PROPERTY_ALGORITHMS", "").split() or ALGORITHMS
    steps = int(os.environ.get("PROPERTY_STEPS", "200000"))
    plan = Plan(int(os.environ.get("PROPERTY_SEED", "1")), steps, Wishes(algorithms))
    assert run(bench, plan.batches(), plan.seed) >= steps
