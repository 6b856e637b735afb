# SPDX-License-Identifier: MIT
"""The judge itself: it passes what is right, and notices each thing that is wrong."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, replace
from fractions import Fraction
from typing import Any

import pytest

from histories import History, Wishes, random_history
from judge import FIELDS, first_disagreement
from oracle import JsonObject, Limit, Tier
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


class TickedBucket:
    """One key's bucket whose use comes down once a tick, in integers: what a store has to do to be right.

    `minds_the_part`: whether it asks, where use ends at empty or at full, what the part of a tick that has passed
    since `last` would have brought back. One that does not starts anew from a time before now, and so too early.
    """

    def __init__(self, tier: Tier, minds_the_part: bool) -> None:
        self._tier = tier
        self._minds_the_part = minds_the_part
        self._unit = tier.unit
        self._back = tier.count * tier.unit * tier.tick // tier.period  # units in a tick
        self._full = tier.capacity * tier.unit
        self._exists = False
        self._used = self._last = 0

    def answer(self, step: JsonObject) -> JsonObject:
        now = max(step["t"], self._last)
        units = step["cost"] * self._unit
        ticks = (now - self._last) // self._tier.tick
        used, last = max(0, self._used - ticks * self._back), self._last + ticks * self._tier.tick
        used, last = self._or_empty(used, last, now)
        verdict, retry = "ok", 0
        if units and step["op"] in ("allow", "peek") and used + units > self._full:
            is_never = step["cost"] > self._tier.capacity
            verdict = "never" if is_never else "limited"
            retry = -1 if is_never else self._wait(used + units - self._full, last, now)
        elif units and step["op"] != "peek" and (step["op"] != "refund" or self._exists):
            if step["op"] == "allow":
                used += units
            elif step["op"] == "refund":
                used, last = self._or_empty(max(0, used - units), last, now)
            elif used < self._full + self._part(last, now):
                used += units
                if used >= self._full + self._part(last, now):
                    used, last = self._full, now if self._minds_the_part else last
            self._exists, self._used, self._last = True, used, last
        remaining = max(0, self._full - used) // self._unit
        return {
            "allowed": verdict == "ok",
            "limit": self._tier.capacity,
            "remaining": remaining,
            "retry_after_us": retry,
            "reset_after_us": self._wait(used, last, now),
            "verdict": verdict,
            "source": "local",
            "tier": "",
            "window_us": self._wait(self._full, 0, 0),
            "more_after_us": self._wait(used + (remaining + 1) * self._unit - self._full, last, now) if used else 0,
        }

    def _or_empty(self, used: int, last: int, now: int) -> tuple[int, int]:
        return (used, last) if used > self._part(last, now) else (0, now)

    def _part(self, last: int, now: int) -> Fraction:
        return Fraction((now - last) * self._back, self._tier.tick) if self._minds_the_part else Fraction(0)

    def _wait(self, units: int, last: int, now: int) -> int:
        return last + -(-units // self._back) * self._tier.tick - now if units > 0 else 0


def ticked_histories(count: int) -> Iterator[History]:
    for seed in itertools.count():
        history = random_history(random.Random(seed), 200, Wishes(["token_bucket"], max_tiers=1, shadow=False))
        if history.tick > 1:
            yield history
            count -= 1
        if not count:
            return


def ticked_disagreements(minds_the_part: bool) -> list[str]:
    found = []
    for history in ticked_histories(20):
        (tier,) = Limit.of_table(history.limit).tiers
        buckets: dict[str, TickedBucket] = defaultdict(lambda: TickedBucket(tier, minds_the_part))  # noqa: B023
        answers = [step | buckets[step["key"]].answer(step) for step in history.steps]
        if problem := first_disagreement(history, {"memory": answers}):
            found.append(problem.what)
    return found


def test_a_bucket_in_ticks_is_agreed_with() -> None:
    assert ticked_disagreements(minds_the_part=True) == []


def test_a_bucket_in_ticks_that_answers_too_early_is_noticed() -> None:
    assert len(ticked_disagreements(minds_the_part=False)) > 1


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
