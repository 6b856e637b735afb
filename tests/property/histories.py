# SPDX-License-Identifier: MIT
"""Random limits and random histories that go where limiters go wrong: to the microsecond at which something changes.

A history is made while the oracle answers it, so that the next query can come exactly when the last answer said
that more would pass, a microsecond before, or one after.

Where design and common sense leave an answer open, no history goes:
- a tier that leaves a limit and returns has the same numbers then, and the clock of such a history does not step
  back (what of a foreign part is still kept, and for how long, is the store's business);
- a refund to a log under a clock that steps back (whether stamps that have run out may return).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from oracle import Decision, JsonObject, Limit, Oracle

ALGORITHMS = ("token_bucket", "fixed_window", "sliding_window", "sliding_log")
_LATEST = 4 * 10**15  # histories stay well inside of what a line's `t` may be
_LONGEST_WINDOW = 10**15  # some 30 years
_LARGEST_LOG = 1000

_PERIODS = ("s", "s", "s", "10s", "7s", "min", "h", "day", "week", "333ms", "1ms", "250us", "90s", "1000s", "13d")
_COUNTS = (1, 1, 2, 3, 5, 7, 10, 11, 60, 97, 100, 999, 1000, 8000, 65_537, 999_983, 1_000_000, 10_000_000)
_BURSTS = (1, 2, 3, 5, 10, 31, 100, 1000, 50_000, 999_983, 1_000_000, 123_456_789, 1_000_000_000)
_JUMPS_US = (1, 2, 7, 999, 33_333, 1_000_000, 59_999_999, 3_600_000_000, 86_400_000_000, 1_814_400_000_000)


@dataclass(frozen=True)
class History:
    limit: JsonObject
    steps: list[JsonObject]
    expected: list[Decision | None]  # by the oracle; None where the limit changes

    @classmethod
    def answered(cls, limit: JsonObject, steps: list[JsonObject]) -> History:
        oracle = Oracle(limit)
        return cls(limit, steps, [oracle.answer(step) for step in steps])

    @property
    def tables(self) -> list[JsonObject]:
        return [self.limit, *(step["limit"] for step in self.steps if step["op"] == "limit")]

    @property
    def tick(self) -> int:
        """The coarsest time that any of its limits is counted in."""
        return max(Limit.of_table(table).tick for table in self.tables)


@dataclass(frozen=True)
class Wishes:
    algorithms: Sequence[str] = ALGORITHMS
    max_tiers: int = 4
    ticks: bool = True  # also limits whose numbers fit only in ticks
    shadow: bool = True


def random_history(dice: random.Random, length: int, wishes: Wishes) -> History:
    return _Author(dice, wishes).write(length)


class _Author:
    def __init__(self, dice: random.Random, wishes: Wishes) -> None:
        self._dice = dice
        self._wishes = wishes
        self._in_ticks = wishes.ticks and dice.random() < 0.1
        self._steps_back = dice.random() < 0.4
        self._gives_and_forces = dice.random() < 0.5
        changes = 0.0 if self._in_ticks else dice.random()
        self._changes_numbers = 0.4 < changes <= 0.7
        self._changes_tiers = 0.7 < changes
        if self._changes_tiers:
            self._steps_back = False

    def write(self, length: int) -> History:
        dice = self._dice
        tables = self._tables()
        if self._gives_and_forces and self._steps_back and '"sliding_log"' in repr(tables).replace("'", '"'):
            self._steps_back = False
        oracle = Oracle(tables[0])
        keys = dice.sample(["a", "b", "é", "", "c d", "k" * 200], dice.randint(1, 4))
        now = dice.choice([0, 1, 1_700_000_000_000_000, dice.randrange(2 * 10**15)])
        steps: list[JsonObject] = []
        expected: list[Decision | None] = []
        last = oracle.decide("peek", keys[0], 0, now)
        for _ in range(length):
            if len(tables) > 1 and dice.random() < 0.02:
                steps.append({"op": "limit", "limit": dice.choice(tables)})
                expected.append(oracle.answer(steps[-1]))
                continue
            now = self._next_time(now, last)
            key = dice.choice(keys)
            step = {"t": now, "key": key, "cost": self._cost(oracle.limit, last), "op": self._operation()}
            steps.append(step)
            answered = oracle.answer(step)
            assert answered is not None
            expected.append(answered)
            last = answered
        return History(tables[0], steps, expected)

    # Limits

    def _tables(self) -> list[JsonObject]:
        """The first is what the history begins with; the others are what it changes to."""
        if self._changes_tiers:
            return self._tables_of_a_pool()
        tiers = self._tiers()
        tables = [self._table(tiers)]
        if self._changes_numbers:
            tables += [self._table([self._with_other_numbers(tier) for tier in tiers]) for _ in range(3)]
        return tables

    def _tables_of_a_pool(self) -> list[JsonObject]:
        """Limits of some few tiers that come and go."""
        if self._wishes.max_tiers < 2 or self._dice.random() < 0.4:
            pool = [self._tier("") for _ in range(3)]
            tables = [self._table([tier]) for tier in _apart(pool)]
        else:
            pool = _apart([self._tier(self._dice.choice("xyz"), in_tiers=True) for _ in range(4)])
            tables = []
            for _ in range(4):
                picked: dict[str, JsonObject] = {tier["name"]: tier for tier in self._shuffled(pool)}
                count = self._dice.randint(1, len(picked))
                tables.append(self._table(list(picked.values())[:count]))
        return tables

    def _shuffled(self, pool: list[JsonObject]) -> list[JsonObject]:
        return self._dice.sample(pool, len(pool))

    def _tiers(self) -> list[JsonObject]:
        if self._wishes.max_tiers < 2 or self._in_ticks or self._dice.random() < 0.5:
            return [self._tier("")]
        names = self._dice.sample(["second", "minute", "day", "x"], self._dice.randint(1, self._wishes.max_tiers))
        return [self._tier(name, in_tiers=True) for name in names]

    def _tier(self, name: str, in_tiers: bool = False) -> JsonObject:
        """A tier, or with an empty name a limit."""
        dice = self._dice
        fitting = [name for name in self._wishes.algorithms if not (in_tiers and name == "sliding_log")]
        while True:
            algorithm = dice.choice(fitting or ["token_bucket"])
            tier: JsonObject = {"name": name} if name else {}
            tier["rate"] = f"{self._count(algorithm)}/{dice.choice(_PERIODS)}"
            if algorithm != "token_bucket" or dice.random() < 0.2:
                tier["algorithm"] = algorithm
            if algorithm == "token_bucket" and dice.random() < 0.8:
                tier["burst"] = self._number(_BURSTS)
            if algorithm == "fixed_window" and dice.random() < 0.6:
                tier["align"] = dice.choice(["first", "clock"])
            if name and self._wishes.shadow and dice.random() < 0.25:
                tier["shadow"] = True
            if self._is_wanted(tier):
                return tier

    def _with_other_numbers(self, tier: JsonObject) -> JsonObject:
        """The same tier, sharing its state, with another rate or burst; of a window only N can change."""
        dice = self._dice
        while True:
            other = dict(tier)
            algorithm = tier.get("algorithm", "token_bucket")
            is_bucket = algorithm == "token_bucket"
            period = dice.choice(_PERIODS) if is_bucket and dice.random() < 0.7 else tier["rate"].split("/")[1]
            other["rate"] = f"{self._count(algorithm)}/{period}"
            if is_bucket:
                other["burst"] = self._number(_BURSTS)
            if self._is_wanted(other):
                return other

    def _table(self, tiers: list[JsonObject]) -> JsonObject:
        table: JsonObject = {"tiers": tiers} if "name" in tiers[0] else dict(tiers[0])
        if self._wishes.shadow and self._dice.random() < 0.1:
            table["shadow"] = True
        return table

    def _is_wanted(self, table: JsonObject) -> bool:
        try:
            (tier,) = Limit.of_table(table).tiers
            return tier.window <= _LONGEST_WINDOW and (tier.tick > 1) == self._in_ticks
        except ValueError:  # not even in ticks
            return False

    def _count(self, algorithm: str) -> int:
        if algorithm == "sliding_log":
            return self._dice.choice([1, 2, 3, 5, 10, 100, self._dice.randint(1, _LARGEST_LOG), _LARGEST_LOG])
        if self._in_ticks:
            return self._dice.choice([999_983, 9_999_991, 123_457, self._dice.randrange(1, 10**7)])
        return self._number(_COUNTS)

    def _number(self, usual: Sequence[int]) -> int:
        if self._dice.random() < 0.7:
            return self._dice.choice(usual)
        return self._dice.randint(1, self._dice.choice(usual))

    # Queries

    def _operation(self) -> str:
        weights = [10, 2, 1, 1] if self._gives_and_forces else [10, 1, 0, 0]
        return self._dice.choices(Oracle.operations, weights)[0]

    def _cost(self, limit: Limit, last: Decision) -> int:
        dice = self._dice
        capacity = dice.choice(limit.tiers).capacity
        chosen = dice.choices(
            [1, last.remaining, last.remaining + 1, dice.randint(0, capacity), capacity, capacity + 1, 0,
             1 + capacity // 10, capacity * 3],
            [8, 4, 4, 3, 1, 1, 1, 4, 0.3],
        )[0]  # fmt: skip
        return int(chosen)

    def _next_time(self, now: int, last: Decision) -> int:
        dice = self._dice
        kind = dice.random()
        if kind < 0.45:
            return now
        if kind < 0.8:  # when something changes
            event = dice.choice([last.retry_after_us, last.more_after_us, last.reset_after_us, last.more_after_us])
            passed = max(0, event + dice.choice([-1, 0, 0, 1]))
        elif kind < 0.85:
            passed = dice.randint(0, 2 * last.window_us)
        elif kind < 0.9:
            passed = max(1, last.window_us // max(1, last.limit))
        elif kind < 0.97 or not self._steps_back:
            passed = dice.choice(_JUMPS_US)
        else:
            passed = -dice.choice([1, 2, last.window_us, last.window_us // 2, dice.choice(_JUMPS_US)])
        later = now + passed
        return later if 0 <= later <= _LATEST else now


def _apart(tiers: list[JsonObject]) -> list[JsonObject]:
    """One tier of each identity."""
    found: dict[Any, JsonObject] = {}
    for tier in tiers:
        (known,) = Limit.of_table(tier).tiers
        found.setdefault(known.identity, tier)
    return list(found.values())
