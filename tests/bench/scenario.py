# SPDX-License-Identifier: MIT
"""What a scenario is asked to show, what it found, and how that is printed."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Options:
    """What the command line said."""

    bin_directory: Path
    rounds: int
    seconds: float  # measured per side and round
    spoofed_keys: int


@dataclass(frozen=True)
class Figure:
    """One number per round, and the number it was asked to be."""

    label: str
    values: list[float]
    at_least: float | None = None
    at_most: float | None = None
    digits: int = 2

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def is_met(self) -> bool | None:
        """None if nothing was asked."""
        if self.at_least is not None:
            return self.median >= self.at_least
        if self.at_most is not None:
            return self.median <= self.at_most
        return None

    def line(self) -> str:
        def show(value: float) -> str:
            return f"{value:,.{self.digits}f}"

        text = f"  {self.label:<52} {show(self.median):>9} ({show(min(self.values))}\u2013{show(max(self.values))})"
        if self.is_met is None:
            return text
        asked = f"\u2265 {self.at_least:g}" if self.at_least is not None else f"\u2264 {self.at_most:g}"
        return f"{text}   asked {asked}: {'met' if self.is_met else 'MISSED'}"

    def as_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "median": self.median,
            "values": self.values,
            "at_least": self.at_least,
            "at_most": self.at_most,
            "met": self.is_met,
        }


@dataclass
class Result:
    """A scenario's figures, with the raw numbers of each round for who wants to look closer."""

    figures: list[Figure]
    rounds: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Scenario:
    name: str
    about: str
    run: Callable[[Options], Result]


def say_round(number: int, *parts: str) -> None:
    """Prints one round's figures as it ends, so that a long run can be watched."""
    print(f"  round {number}:  " + "   ".join(parts), flush=True)


def column(rounds: list[dict[str, Any]], name: str) -> list[float]:
    """One figure of every round."""
    return [float(row[name]) for row in rounds]
