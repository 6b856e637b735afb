# SPDX-License-Identifier: MIT
"""What a generator reported, and how reports of several short runs become one."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

_Side = TypeVar("_Side")


@dataclass(frozen=True)
class Load:
    """The names are the generator's JSON fields; README.md explains them."""

    queries: int
    total_queries: int
    seconds: float
    rate: float
    p50_us: float
    p90_us: float
    p99_us: float
    p999_us: float
    max_us: float
    own_cpu_us_per_query: float
    allowed: int
    total_allowed: int
    samples: int = 0
    fallback_samples: int = 0
    first_reply: str = ""
    histogram: list[list[float]] = field(default_factory=list)

    @staticmethod
    def from_json(text: str) -> Load:
        values: dict[str, Any] = json.loads(text)
        return Load(**{name: value for name, value in values.items() if name in Load.__dataclass_fields__})

    def slower_than(self, microseconds: float) -> float:
        """The share of queries that took longer; the histogram has doublings, so choose a power of two."""
        slow = sum(count for below, count in self.histogram if below > microseconds)
        return float(slow / self.queries)


def merged(loads: Sequence[Load]) -> Load:
    """Counts are summed, quantiles are the medians of the runs' quantiles, the histograms are left out."""

    def total(name: str) -> Any:
        return sum(getattr(load, name) for load in loads)

    def middle(name: str) -> float:
        return float(statistics.median(getattr(load, name) for load in loads))

    return Load(
        queries=total("queries"),
        total_queries=total("total_queries"),
        seconds=total("seconds"),
        rate=total("queries") / total("seconds"),
        p50_us=middle("p50_us"),
        p90_us=middle("p90_us"),
        p99_us=middle("p99_us"),
        p999_us=middle("p999_us"),
        max_us=max(load.max_us for load in loads),
        own_cpu_us_per_query=middle("own_cpu_us_per_query"),
        allowed=total("allowed"),
        total_allowed=total("total_allowed"),
        samples=total("samples"),
        fallback_samples=total("fallback_samples"),
    )


def alternate(slices: int, one: Callable[[], _Side], other: Callable[[], _Side]) -> tuple[list[_Side], list[_Side]]:
    """A B A B ...: what disturbs the machine for longer than a slice disturbs both sides alike."""
    pairs = [(one(), other()) for _ in range(slices)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def middle_ratio(above: Sequence[Load], below: Sequence[Load], name: str) -> float:
    """The median over pairs of neighbours in time of above's figure divided by below's."""
    ratios = [getattr(a, name) / getattr(b, name) for a, b in zip(above, below, strict=True)]
    return float(statistics.median(ratios))
