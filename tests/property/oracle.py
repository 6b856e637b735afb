# SPDX-License-Identifier: MIT
"""What every limit has to answer, computed from its definition in exact rationals.

Nothing here is taken from the agent: use is a Fraction of permits, and a wait is the first whole microsecond at
which the definition lets the cost pass. Slow and plain on purpose.

Each algorithm is a State of one tier under one key. A State is asked with the Tier as it stands now, since a limit
may change under it. `level()` says what is there at a time; `charge`, `refund` and `force` write.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar, Protocol

LARGEST = 2**52  # what a store can count to exactly

_UNITS_US = {
    "us": 1, "ms": 1_000,
    "s": 1_000_000, "sec": 1_000_000, "second": 1_000_000,
    "m": 60_000_000, "min": 60_000_000, "minute": 60_000_000,
    "h": 3_600_000_000, "hour": 3_600_000_000,
    "d": 86_400_000_000, "day": 86_400_000_000, "week": 604_800_000_000,
}  # fmt: skip
_TICKS_US = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)

JsonObject = dict[str, Any]
NEVER = -1


# Definitions


@dataclass(frozen=True)
class Tier:
    """One rate of a limit: `count` per `period` microseconds."""

    name: str
    algorithm: str
    align: str
    count: int
    period: int
    capacity: int
    shadow: bool

    @classmethod
    def of_table(cls, table: JsonObject) -> Tier:
        count_text, per = table["rate"].split("/")
        algorithm = table.get("algorithm", "token_bucket")
        unit = per.lstrip("0123456789")
        period = int(per[: len(per) - len(unit)] or 1) * _UNITS_US[unit]
        return cls(
            name=table.get("name", ""),
            algorithm=algorithm,
            align=table.get("align", "first") if algorithm == "fixed_window" else "",
            count=int(count_text),
            period=period,
            capacity=table.get("burst", int(count_text)),
            shadow=table.get("shadow", False),
        )

    @cached_property
    def identity(self) -> tuple[str, str, str, int]:
        """Tiers that are equal in this share their state. A bucket's use outlives every change of its rate."""
        return self.name, self.algorithm, self.align, 0 if self.algorithm == "token_bucket" else self.period

    @cached_property
    def refill(self) -> Fraction:
        """Permits per microsecond."""
        return Fraction(self.count, self.period)

    @cached_property
    def window(self) -> int:
        return math.ceil(self.capacity / self.refill) if self.algorithm == "token_bucket" else self.period

    @cached_property
    def unit(self) -> int:
        """A bucket's use is stored in 1/unit permits."""
        ticks = self.period // self.tick
        return ticks // math.gcd(self.count, ticks)

    @cached_property
    def tick(self) -> int:
        """The time that a store counts in: 1 us, or the finest one in which its numbers fit."""
        for tick in _TICKS_US:
            ticks, rest = divmod(self.period, tick)
            if rest:
                break
            divisor = math.gcd(self.count, ticks) if self.algorithm == "token_bucket" else 1
            if self.algorithm not in ("token_bucket", "sliding_window") or (
                self.capacity * (ticks // divisor) < LARGEST
            ):
                return tick
        raise ValueError(f"no tick fits {self}")


@dataclass(frozen=True)
class Limit:
    tiers: tuple[Tier, ...]
    shadow: bool

    @classmethod
    def of_table(cls, table: JsonObject) -> Limit:
        shadow = table.get("shadow", False)
        if "tiers" in table:
            return cls(tuple(Tier.of_table(tier) for tier in table["tiers"]), shadow)
        return cls((replace(Tier.of_table(table), shadow=False),), shadow)

    @property
    def tick(self) -> int:
        return max(tier.tick for tier in self.tiers)


@dataclass(frozen=True)
class Decision:
    allowed: bool
    limit: int
    remaining: int
    retry_after_us: int
    reset_after_us: int
    verdict: str
    tier: str
    window_us: int
    more_after_us: int


# The algorithms


class Level(Protocol):
    """What is there at one time, while nothing is charged."""

    @property
    def remaining(self) -> int: ...

    @property
    def reset_after(self) -> int:
        """0: nothing is used."""

    def wait(self, cost: int) -> int:
        """Until `cost`, which is within the capacity, passes: 0 if now."""


class BlurredLevel(Level, Protocol):
    """Of an algorithm that a store may have to count in ticks."""

    def earlier(self, by: int) -> BlurredLevel:
        """At most what was there so long ago."""


class State(Protocol):
    def level(self, tier: Tier, now: int) -> Level: ...
    def charge(self, tier: Tier, now: int, cost: int) -> None: ...
    def refund(self, tier: Tier, now: int, cost: int) -> None: ...
    def force(self, tier: Tier, now: int, cost: int) -> None: ...


@dataclass
class BucketLevel:
    used: Fraction
    capacity: int
    refill: Fraction

    @property
    def remaining(self) -> int:
        return max(0, math.floor(self.capacity - self.used))

    @property
    def reset_after(self) -> int:
        return math.ceil(self.used / self.refill)

    def wait(self, cost: int) -> int:
        return max(0, math.ceil((self.used + cost - self.capacity) / self.refill))

    def earlier(self, by: int) -> BucketLevel:
        return replace(self, used=self.used + by * self.refill)


@dataclass
class Bucket:
    """Use comes down by `refill` in every microsecond."""

    exists: bool = False
    used: Fraction = Fraction(0)
    unit: int = 1  # that `used` was written in
    last: int = 0  # when `used` was true

    def level(self, tier: Tier, now: int) -> BucketLevel:
        return BucketLevel(self._used_at(tier, now), tier.capacity, tier.refill)

    def charge(self, tier: Tier, now: int, cost: int) -> None:
        self._write(tier, now, self._used_at(tier, now) + cost)

    def refund(self, tier: Tier, now: int, cost: int) -> None:
        if self.exists:
            self._write(tier, now, max(Fraction(0), self._used_at(tier, now) - cost))

    def force(self, tier: Tier, now: int, cost: int) -> None:
        used = self._used_at(tier, now)
        wanted = min(Fraction(tier.capacity), used + cost)
        if wanted > used:
            self._write(tier, now, wanted)

    def _used_at(self, tier: Tier, now: int) -> Fraction:
        idle = max(now, self.last) - self.last  # a clock that steps back grants nothing
        return max(Fraction(0), self._used_in_unit_of(tier) - idle * tier.refill)

    def _used_in_unit_of(self, tier: Tier) -> Fraction:
        """Use as a reader with another unit takes it over: whole permits as they are, a rest rounded up."""
        if tier.unit == self.unit:
            return self.used
        whole = math.floor(self.used)
        rest = self.used - whole
        if rest * self.unit * tier.unit >= 2**53:
            rest = Fraction(1)
        return min(whole + Fraction(math.ceil(rest * tier.unit), tier.unit), Fraction(LARGEST, tier.unit))

    def _write(self, tier: Tier, now: int, used: Fraction) -> None:
        self.exists, self.used, self.unit, self.last = True, used, tier.unit, max(now, self.last)


@dataclass
class FixedLevel:
    count: int
    capacity: int
    left: int  # of the window

    @property
    def remaining(self) -> int:
        return max(0, self.capacity - self.count)

    @property
    def reset_after(self) -> int:
        return self.left if self.count else 0

    def wait(self, cost: int) -> int:
        return self.left if self.count + cost > self.capacity else 0


@dataclass
class FixedWindow:
    """N in a window that the first charge opens, or that begins at a multiple of W."""

    start: int | None = None
    count: int = 0

    def level(self, tier: Tier, now: int) -> FixedLevel:
        if not self._is_running(tier, now):
            return FixedLevel(0, tier.capacity, 0)
        assert self.start is not None
        return FixedLevel(self.count, tier.capacity, self.start + tier.period - max(now, self.start))

    def charge(self, tier: Tier, now: int, cost: int) -> None:
        if not self._is_running(tier, now):
            self.start = now if tier.align == "first" else now - now % tier.period
            self.count = 0
        self.count += cost

    def refund(self, tier: Tier, now: int, cost: int) -> None:
        if self._is_running(tier, now):
            self.count = max(0, self.count - cost)

    def force(self, tier: Tier, now: int, cost: int) -> None:
        free = self.level(tier, now).remaining
        if free:
            self.charge(tier, now, min(cost, free))

    def _is_running(self, tier: Tier, now: int) -> bool:
        """An earlier `now` counts as the window's start."""
        return self.start is not None and now < self.start + tier.period


@dataclass
class SlidingLevel:
    previous: int
    current: int
    capacity: int
    period: int
    elapsed: int  # of the current window

    @property
    def remaining(self) -> int:
        weight = Fraction(self.previous * (self.period - self.elapsed), self.period)
        return max(0, math.floor(self.capacity - self.current - weight))

    @property
    def reset_after(self) -> int:
        windows = 2 if self.current else 1 if self.previous else 0
        return windows * self.period - self.elapsed if windows else 0

    def wait(self, cost: int) -> int:
        if self.current + cost <= self.capacity:  # passes in this window, or at its end
            return max(0, self._first_fit(self.previous, self.capacity - self.current - cost) - self.elapsed)
        return self.period + self._first_fit(self.current, self.capacity - cost) - self.elapsed

    def earlier(self, by: int) -> SlidingLevel:
        return replace(self, elapsed=max(0, self.elapsed - by))

    def _first_fit(self, previous: int, room: int) -> int:
        """The first microsecond e of a window with previous * (W - e) / W <= room, where room >= 0."""
        if previous <= room:
            return 0
        return math.ceil(self.period - Fraction(room * self.period, previous))


@dataclass
class SlidingWindow:
    """Two counts of windows that begin at multiples of W; the older one weighs what is left of it."""

    start: int | None = None
    previous: int = 0
    current: int = 0

    def level(self, tier: Tier, now: int) -> SlidingLevel:
        time = now if self.start is None else max(now, self.start)
        elapsed = time % tier.period
        if time - elapsed == self.start:
            previous, current = self.previous, self.current
        elif time - elapsed - tier.period == self.start:
            previous, current = self.current, 0
        else:
            previous, current = 0, 0
        return SlidingLevel(previous, current, tier.capacity, tier.period, elapsed)

    def charge(self, tier: Tier, now: int, cost: int) -> None:
        level = self.level(tier, now)
        time = now if self.start is None else max(now, self.start)
        self.start, self.previous, self.current = time - level.elapsed, level.previous, level.current + cost

    def refund(self, tier: Tier, now: int, cost: int) -> None:
        if self.start is not None and now < self.start + tier.period:
            self.current = max(0, self.current - cost)

    def force(self, tier: Tier, now: int, cost: int) -> None:
        free = tier.capacity - self.level(tier, now).current
        if free > 0:
            self.charge(tier, now, min(cost, free))


@dataclass
class LogLevel:
    free_at: list[int]  # of each unit in use, in order
    capacity: int
    now: int

    @property
    def remaining(self) -> int:
        return max(0, self.capacity - len(self.free_at))

    @property
    def reset_after(self) -> int:
        return self.free_at[-1] - self.now if self.free_at else 0

    def wait(self, cost: int) -> int:
        missing = len(self.free_at) + cost - self.capacity
        return self.free_at[missing - 1] - self.now if missing > 0 else 0


@dataclass
class SlidingLog:
    """A stamp for every unit; one stamped at t is free at t + W."""

    stamps: list[int] = field(default_factory=list)

    def level(self, tier: Tier, now: int) -> LogLevel:
        now = self._time(now)
        return LogLevel([stamp + tier.period for stamp in self._live(tier, now)], tier.capacity, now)

    def charge(self, tier: Tier, now: int, cost: int) -> None:
        now = self._time(now)
        self.stamps = self._live(tier, now) + [now] * cost

    def refund(self, tier: Tier, now: int, cost: int) -> None:
        live = self._live(tier, self._time(now))
        if live:
            self.stamps = live[: max(0, len(live) - cost)]

    def force(self, tier: Tier, now: int, cost: int) -> None:
        free = self.level(tier, now).remaining
        if free:
            self.charge(tier, now, min(cost, free))

    def _time(self, now: int) -> int:
        return max(now, self.stamps[-1]) if self.stamps else now

    def _live(self, tier: Tier, now: int) -> list[int]:
        return [stamp for stamp in self.stamps if now < stamp + tier.period]


_STATES: dict[str, Callable[[], State]] = {
    "token_bucket": Bucket,
    "fixed_window": FixedWindow,
    "sliding_window": SlidingWindow,
    "sliding_log": SlidingLog,
}


# Limits


class Oracle:
    """Answers a history, step by step."""

    operations: ClassVar[tuple[str, ...]] = ("allow", "peek", "refund", "force")

    def __init__(self, table: JsonObject) -> None:
        self.limit = Limit.of_table(table)
        self._states: dict[tuple[Any, ...], State] = {}

    def answer(self, step: JsonObject) -> Decision | None:
        """What a line of a history is answered: None for a change of the limit."""
        if step["op"] == "limit":
            self.limit = Limit.of_table(step["limit"])
            return None
        return self.decide(step["op"], step["key"], step["cost"], step["t"])

    def decide(self, operation: str, key: str, cost: int, now: int) -> Decision:
        if cost == 0:
            return self._passed(key, now)
        if operation in ("refund", "force"):
            for tier in self.limit.tiers:
                state = self._state(key, tier)
                (state.refund if operation == "refund" else state.force)(tier, now, cost)
            return self._passed(key, now)
        return self._ask(key, cost, now, charges=operation == "allow")

    def charge(self, key: str, cost: int, now: int) -> None:
        """Whatever the level: for an answer that somebody else gave."""
        for tier in self.limit.tiers:
            self._state(key, tier).charge(tier, now, cost)

    def reset_after(self, key: str, now: int) -> int:
        """Until nothing is used on any tier."""
        return max(self._state(key, tier).level(tier, now).reset_after for tier in self.limit.tiers)

    def level(self, key: str, now: int) -> BlurredLevel:
        """Of the only tier, a bucket or a sliding window."""
        (tier,) = self.limit.tiers
        level = self._state(key, tier).level(tier, now)
        assert isinstance(level, BucketLevel | SlidingLevel)
        return level

    def _ask(self, key: str, cost: int, now: int, charges: bool) -> Decision:
        tiers = self.limit.tiers
        waits = {tier: self._wait(key, tier, cost, now) for tier in tiers}
        refusing = [tier for tier in tiers if waits[tier] > 0]
        real = [tier for tier in refusing if not tier.shadow]
        if real:
            worst = max(real, key=lambda tier: waits[tier])  # the first of equals
            return self._refused(key, worst, waits[worst], now, is_shadow=self.limit.shadow)
        if charges:
            for tier in tiers:
                if tier not in refusing:
                    self._state(key, tier).charge(tier, now, cost)
        if refusing:
            worst = max(refusing, key=lambda tier: waits[tier])
            return self._refused(key, worst, waits[worst], now, is_shadow=True)
        return self._passed(key, now)

    def _wait(self, key: str, tier: Tier, cost: int, now: int) -> float:
        return math.inf if cost > tier.capacity else self._state(key, tier).level(tier, now).wait(cost)

    def _passed(self, key: str, now: int) -> Decision:
        return min((self._describe(key, tier, now) for tier in self.limit.tiers), key=lambda found: found.remaining)

    def _refused(self, key: str, tier: Tier, wait: float, now: int, is_shadow: bool) -> Decision:
        is_never = math.isinf(wait)
        return replace(
            self._describe(key, tier, now),
            allowed=is_shadow,
            verdict="shadow" if is_shadow else "never" if is_never else "limited",
            retry_after_us=NEVER if is_never else int(wait),
        )

    def _describe(self, key: str, tier: Tier, now: int) -> Decision:
        level = self._state(key, tier).level(tier, now)
        reset_after = level.reset_after
        remaining = level.remaining
        return Decision(
            allowed=True,
            limit=tier.capacity,
            remaining=remaining,
            retry_after_us=0,
            reset_after_us=reset_after,
            verdict="ok",
            tier=tier.name,
            window_us=tier.window,
            more_after_us=level.wait(remaining + 1) if reset_after else 0,
        )

    def _state(self, key: str, tier: Tier) -> State:
        place = (key, *tier.identity)
        if place not in self._states:
            self._states[place] = _STATES[tier.algorithm]()
        return self._states[place]
