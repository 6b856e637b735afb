# SPDX-License-Identifier: MIT
"""The judge itself: it passes what is right, and notices each thing that is wrong."""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from typing import Any

import pytest

from histories import History, Wishes, random_history
from judge import FIELDS, first_disagreement
from oracle import JsonObject, Tier
from promises import broken_promise
from run import shrunk

_NO_TICKS = Wishes(ticks=False)


def exact_answers(history: History) -> list[JsonObject]:
    return [
        step | (asdict(decision) | {"source": "local"} if decision else {})
        for step, decision in zip(history.steps, history.expected, strict=True)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_exact_answers_are_agreed_with(seed: int) -> None:
    history = random_history(random.Random(seed), 300, Wishes())
    assert first_disagreement(history, {"memory": exact_answers(history)}) is None


@pytest.mark.parametrize("field", [*FIELDS, "source"])
def test_one_wrong_field_is_noticed_at_its_step(field: str) -> None:
    dice = random.Random(field)
    history = random_history(dice, 300, _NO_TICKS)
    answers = exact_answers(history)
    wrong = dice.choice([number for number, decision in enumerate(history.expected) if decision])
    right = answers[wrong][field]
    answers[wrong][field] = not right if isinstance(right, bool) else f"{right}?" if right == "" else str(right) + "1"
    found = first_disagreement(history, {"memory": answers})
    assert found and found.step == wrong and field in found.what


def test_stores_that_differ_are_noticed_even_within_a_tick() -> None:
    history = History.answered({"rate": "9999991/day"}, [{"t": 0, "key": "k", "cost": 1, "op": "allow"}])
    assert history.tick > 1
    memory, redis = exact_answers(history), exact_answers(history)
    redis[0] |= {"source": "store", "reset_after_us": redis[0]["reset_after_us"] + 1}
    found = first_disagreement(history, {"memory": memory, "redis": redis})
    assert found and "differ" in found.what


@pytest.mark.parametrize(
    ("limit", "times"),
    [
        ({"rate": "1/s", "burst": 3}, [0, 0, 0, 999_999]),
        ({"rate": "3/s", "algorithm": "fixed_window"}, [0, 0, 0, 999_999]),
        ({"rate": "3/s", "algorithm": "fixed_window", "align": "clock"}, [0, 0, 0, 999_999]),
        ({"rate": "3/s", "algorithm": "sliding_log"}, [1, 500_000, 1_000_000, 1_000_000]),
    ],
)
def test_more_than_the_limit_is_noticed_without_the_oracle(limit: JsonObject, times: list[int]) -> None:
    steps: list[JsonObject] = [{"t": time, "key": "k", "cost": 1, "op": "allow"} for time in times]
    history = History.answered(limit, steps)
    assert broken_promise(history, exact_answers(history)) == ""
    assert broken_promise(history, [answer | {"allowed": True} for answer in exact_answers(history)])


def test_a_disagreement_is_shrunk_to_the_steps_that_make_it() -> None:
    history = random_history(random.Random(3), 800, replace(_NO_TICKS, algorithms=["fixed_window"], shadow=False))

    def refuses(candidate: History) -> Any:
        wrong = exact_answers(candidate)
        for answer in wrong:
            if answer.get("verdict") == "limited":
                answer["remaining"] += 1
        return first_disagreement(candidate, {"memory": wrong})

    short, problem = shrunk(history, refuses)
    assert problem.step == len(short.steps) - 1
    assert len(short.steps) <= 3


@pytest.mark.parametrize(
    ("table", "tick"),
    [
        ({"rate": "100/s", "burst": 200}, 1),
        ({"rate": "1000000/day"}, 1),
        ({"rate": "999983/day"}, 100),
        ({"rate": "1000000/day", "algorithm": "sliding_window"}, 100),
        ({"rate": "1000000/day", "algorithm": "fixed_window"}, 1),
    ],
)
def test_a_tick_is_the_finest_that_fits(table: JsonObject, tick: int) -> None:
    assert Tier.of_table(table).tick == tick
