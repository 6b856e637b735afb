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

import processes
from agent import default_binary
from histories import ALGORITHMS, History, Wishes
from oracle import JsonObject, Oracle
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
    assert bench.redis_keys() == {}


def test_random_histories_come_out_alike_on_both_stores_and_in_rationals(bench: Bench) -> None:
    algorithms = os.environ.get("PROPERTY_ALGORITHMS", "").split() or ALGORITHMS
    steps = int(os.environ.get("PROPERTY_STEPS", "200000"))
    plan = Plan(int(os.environ.get("PROPERTY_SEED", "1")), steps, Wishes(algorithms))
    assert run(bench, plan.batches(), plan.seed) >= steps


LIMITS: dict[str, JsonObject] = {
    "token_bucket": {"rate": "3/s", "burst": 30},
    "token_bucket, counted in ticks": {"rate": "999983/day"},
    "token_bucket, slower than any TTL": {"rate": "1/week", "burst": 100},
    "fixed_window": {"rate": "3/10s", "algorithm": "fixed_window"},
    "sliding_window": {"rate": "3/10s", "algorithm": "sliding_window"},
    "sliding_log": {"rate": "3/10s", "algorithm": "sliding_log"},
    "tiers": {"tiers": [{"name": "s", "rate": "3/s"}, {"name": "day", "rate": "9/day", "algorithm": "fixed_window"}]},
}
_MARGIN_MS = 60_000
_LONGEST_TTL_MS = 400 * 86_400_000
_SLACK_MS = 10_000  # a slow machine; rounding; the TTL is written again only where it matters


@pytest.mark.parametrize("name", LIMITS)
def test_every_key_has_a_ttl_that_outlasts_its_use(bench: Bench, name: str) -> None:
    steps: list[JsonObject] = [
        {"t": 1_700_000_000_000_000 + number, "key": str(number), "cost": 1 + number, "op": operation}
        for number, operation in enumerate(("allow", "force", "allow"))
    ]
    history = History.answered(LIMITS[name], steps)
    oracle = Oracle(history.limit)
    for step in steps:
        oracle.answer(step)
    resets = [oracle.reset_after(step["key"], step["t"]) for step in steps]
    with bench.replayers["redis"].under_way(history) as replay:
        processes.wait_until(
            lambda: replay.poll() is not None or len(bench.redis_keys()) == len(steps), "every key is written"
        )
        ttls = sorted(bench.redis_keys().values())
    for ttl, reset in zip(ttls, sorted(resets), strict=True):
        expected = min(reset // 1000 + _MARGIN_MS, _LONGEST_TTL_MS)
        assert expected - _SLACK_MS <= ttl <= expected + _SLACK_MS
    assert bench.redis_keys() == {}
