# SPDX-License-Identifier: MIT
"""The oracle itself: it gives the answers of the worked histories."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from oracle import Oracle

CASES = Path(__file__).resolve().parents[1] / "cases" / "limits.jsonl"


def worked_histories() -> list[dict[str, Any]]:
    return [json.loads(line) for line in CASES.read_text().splitlines() if line.strip()]


@pytest.mark.parametrize("case", worked_histories(), ids=lambda case: str(case["id"]))
def test_the_oracle_reproduces_a_worked_history(case: dict[str, Any]) -> None:
    oracle = Oracle(case["limit"])
    for number, step in enumerate(case["steps"], 1):
        decision = oracle.answer(step)
        expected = step.get("expect", {})
        answered = asdict(decision) if decision else {}
        assert {name: answered[name] for name in expected} == expected, f"step {number}"
