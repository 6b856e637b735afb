# SPDX-License-Identifier: MIT
"""Holds the answers of every store against the oracle and against each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from histories import History
from oracle import NEVER, Decision, JsonObject, Oracle
from promises import broken_promise

FIELDS = tuple(field.name for field in fields(Decision))
_SOURCES = {"memory": "local", "redis": "store"}
Answers = Sequence[JsonObject]


@dataclass(frozen=True)
class Disagreement:
    step: int  # its index
    what: str


def first_disagreement(history: History, answers: Mapping[str, Answers]) -> Disagreement | None:
    """`answers`: what each store ("memory", "redis") answered."""
    verdicts = _tick_verdicts if history.tick > 1 else _exact_verdicts
    found = [
        problem
        for store, given in answers.items()
        for problem in (next(verdicts(history, store, given), None), next(_wrong_sources(history, store, given), None))
        if problem
    ]
    found += [problem for pair in pairwise(answers.items()) if (problem := _difference(*pair))]
    if found:
        return min(found, key=lambda problem: problem.step)
    for store, given in answers.items():
        if (broken := broken_promise(history, given)) and history.tick == 1:
            return Disagreement(len(history.steps) - 1, f"{store}: {broken}")
    return None


def _decision_fields(answer: JsonObject) -> JsonObject:
    return {name: answer.get(name) for name in FIELDS}


def _exact_verdicts(history: History, store: str, answers: Answers) -> Iterator[Disagreement]:
    for number, (step, decision, answer) in enumerate(zip(history.steps, history.expected, answers, strict=True)):
        if decision is None:
            if answer != step:
                yield Disagreement(number, f"{store}: the line of a changed limit comes back as {answer}")
            continue
        expected = vars(decision)
        if all(answer.get(name) == right for name, right in expected.items()):
            continue
        wrong = (
            f"{name} {answer.get(name)} instead of {right}"
            for name, right in expected.items()
            if answer.get(name) != right
        )
        yield Disagreement(number, f"{store}: " + ", ".join(wrong))


def _wrong_sources(history: History, store: str, answers: Answers) -> Iterator[Disagreement]:
    for number, (step, answer) in enumerate(zip(history.steps, answers, strict=True)):
        if step["op"] != "limit" and answer.get("source") != _SOURCES[store]:
            yield Disagreement(number, f"{store}: source {answer.get('source')}")


def _difference(one: tuple[str, Answers], other: tuple[str, Answers]) -> Disagreement | None:
    for number, (answer, another) in enumerate(zip(one[1], other[1], strict=True)):
        if _decision_fields(answer) != _decision_fields(another):
            return Disagreement(
                number, f"{one[0]} and {other[0]} differ: {_decision_fields(answer)} != {_decision_fields(another)}"
            )
    return None


@dataclass(frozen=True)
class _Blur:
    """How far an answer may be from the exact one, in microseconds."""

    early: int
    late: int


def _tick_verdicts(history: History, store: str, answers: Answers) -> Iterator[Disagreement]:
    """A limit that is counted in ticks: no answer earlier than exact, none more than a tick later.

    The oracle follows: it charges what the agent admitted, and says exactly what that leaves.
    """
    oracle = Oracle(history.limit)
    is_bucket = oracle.limit.tiers[0].algorithm == "token_bucket"
    newest_charge: dict[str, int] = {}
    went_back: set[str] = set()
    for number, (step, answer) in enumerate(zip(history.steps, answers, strict=True)):
        key, now, cost = step["key"], step["t"], step["cost"]
        # A bucket's own time may be up to a tick before its last charge. Under a clock that steps back it counts as
        # now there, where exact would count from the charge.
        is_back = is_bucket and now < newest_charge.get(key, 0)
        if is_back:
            went_back.add(key)
        blur = _Blur(early=history.tick if key in went_back else 0, late=history.tick * (2 if is_back else 1))
        if problem := _tick_problem(oracle, step, answer, blur):
            yield Disagreement(number, f"{store}: {problem}")
            return  # what follows from a wrong state tells nothing
        if cost > 0 and step["op"] != "peek" and answer["verdict"] == "ok":
            newest_charge[key] = max(now, newest_charge.get(key, 0))


def _tick_problem(oracle: Oracle, step: JsonObject, answer: JsonObject, blur: _Blur) -> str:
    """Judges one answer, and brings the oracle's state along."""
    (tier,) = oracle.limit.tiers
    key, now, cost = step["key"], step["t"], step["cost"]
    asks = step["op"] in ("allow", "peek") and cost > 0
    is_never = asks and cost > tier.capacity
    refused = asks and answer["verdict"] != "ok"
    needed = oracle.level(key, now).wait(cost) if asks and not is_never else 0
    if is_never and not refused:
        return "admits a cost above the capacity"
    if needed > blur.early and not refused:
        return f"admits {needed} us too early"
    if step["op"] in ("refund", "force"):
        oracle.decide(step["op"], key, cost, now)
    elif step["op"] == "allow" and asks and not refused:
        oracle.charge(key, cost, now)

    def about(wait: int, least: int = 0) -> tuple[int, int]:
        return max(least, wait - blur.early), wait + blur.late

    after = oracle.level(key, now)
    refusal = "shadow" if oracle.limit.shadow else "never" if is_never else "limited"
    remaining = answer["remaining"]
    ranges = {
        "allowed": (not refused or oracle.limit.shadow,) * 2,
        "limit": (tier.capacity,) * 2,
        "remaining": (after.earlier(blur.late).remaining, min(tier.capacity, after.earlier(-blur.early).remaining)),
        "retry_after_us": (NEVER, NEVER) if is_never else about(needed, least=1) if refused else (0, 0),
        "reset_after_us": about(after.reset_after),
        "verdict": (refusal if refused else "ok",) * 2,
        "tier": ("", ""),
        "window_us": (tier.window, tier.window + tier.tick),
        "more_after_us": about(after.wait(remaining + 1)) if remaining < tier.capacity else (0, 0),
    }
    for name, (least, most) in ranges.items():
        if not least <= answer[name] <= most:
            return f"{name} {answer[name]} instead of {least}" + (f" to {most}" if most != least else "")
    return ""
