#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Random histories through `allowd replay`: memory, Redis and the oracle must agree in every field.

    tests/property/run.py                                 200,000 steps on both stores
    tests/property/run.py --steps 10M --seed 7
    tests/property/run.py --store memory --algorithms token_bucket
    tests/property/run.py --seed 7 --only 41              history 41 of that seed, alone

Prints the first disagreement as a history that is as short as could be found, and exits with 1.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "e2e")]

from agent import ReplayFailed, Replayer, default_binary  # noqa: E402
from histories import ALGORITHMS, History, Wishes, random_history  # noqa: E402
from judge import Answers, Disagreement, first_disagreement  # noqa: E402
from oracle import JsonObject  # noqa: E402
from redis_server import RedisServer  # noqa: E402

STORES = ("memory", "redis")
_HISTORIES_PER_PROCESS = 20
_SHRINK_SECONDS = 30.0


Answering = Mapping[str, Future[list[list[JsonObject]]]]  # of each store, the answers to some histories
Batch = Mapping[int, History]


class Bench:
    """The stores, ready to be asked."""

    def __init__(self, replayers: Mapping[str, Replayer], redis: RedisServer | None) -> None:
        self.replayers = replayers
        self.redis = redis
        self._threads = {store: ThreadPoolExecutor(1) for store in replayers}  # one replay at a time on each

    def start(self, histories: Sequence[History]) -> Answering:
        return {
            store: self._threads[store].submit(replayer.answers, histories)
            for store, replayer in self.replayers.items()
        }

    def judge_alone(self, history: History) -> Disagreement | None:
        try:
            answers = {store: answered.result()[0] for store, answered in self.start([history]).items()}
        except ReplayFailed as problem:
            return Disagreement(len(history.steps) - 1, str(problem))
        return first_disagreement(history, answers)

    def redis_keys(self) -> dict[bytes, int]:
        """Every key, with its TTL in ms as PTTL tells it."""
        found: dict[bytes, int] = {}
        if self.redis is None:
            return found
        with self.redis.client() as client:
            cursor = b"0"
            while True:
                cursor, keys = client.call("SCAN", cursor, "COUNT", 1000)
                found |= {key: client.call("PTTL", key) for key in keys}
                if cursor == b"0":
                    return found

    def close(self) -> None:
        for thread in self._threads.values():
            thread.shutdown()


def open_bench(cleanup: ExitStack, binary: Path, stores: Sequence[str]) -> Bench:
    directory = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="allowd-property-")))
    redis = None
    replayers = {}
    if "redis" in stores:
        redis = RedisServer(directory / "redis")
        cleanup.callback(redis.close)
        redis.start()
        replayers["redis"] = Replayer(binary, directory, f"{redis.url}/0")
    if "memory" in stores:
        replayers["memory"] = Replayer(binary, directory, "memory")
    bench = Bench(replayers, redis)
    cleanup.callback(bench.close)
    return bench


@dataclass(frozen=True)
class Plan:
    seed: int
    steps: int
    wishes: Wishes

    def history(self, number: int) -> History:
        dice = random.Random(f"{self.seed}/{number}")
        return random_history(dice, dice.randint(500, 2000), self.wishes)

    def batches(self) -> Iterator[Batch]:
        """Numbered histories, until there are steps enough."""
        number = steps = 0
        while steps < self.steps:
            batch: dict[int, History] = {}
            while len(batch) < _HISTORIES_PER_PROCESS and steps < self.steps:
                batch[number] = self.history(number)
                steps += len(batch[number].steps)
                number += 1
            yield batch


class Failed(Exception):
    """A disagreement, told so that it can be repeated."""


def run(bench: Bench, batches: Iterable[Batch], seed: int, report: Callable[[int], None] = lambda steps: None) -> int:
    """Returns the number of steps that agreed; raises Failed. The agent answers while the next batch is made."""
    agreed = 0
    waiting: tuple[Batch, Answering] | None = None
    for batch in chain(batches, [None]):
        started = (batch, bench.start(list(batch.values()))) if batch else None
        if waiting:
            _settle(bench, seed, *waiting)
            agreed += sum(len(history.steps) for history in waiting[0].values())
            report(agreed)
        waiting = started
    if left_behind := bench.redis_keys():
        raise Failed(f"keys were left behind, with these TTLs in ms: {left_behind}")
    return agreed


def _settle(bench: Bench, seed: int, batch: Batch, answering: Answering) -> None:
    try:
        answers = {store: given.result() for store, given in answering.items()}
    except ReplayFailed as problem:
        for number, history in batch.items():
            if bench.judge_alone(history):
                raise Failed(_tell(bench, seed, number, history)) from problem
        raise Failed(f"histories {min(batch)} to {max(batch)} of seed {seed} together: {problem}") from problem
    for place, (number, history) in enumerate(batch.items()):
        given: dict[str, Answers] = {store: of_store[place] for store, of_store in answers.items()}
        if disagreement := first_disagreement(history, given):
            if bench.judge_alone(history):
                raise Failed(_tell(bench, seed, number, history))
            raise Failed(f"history {number} of seed {seed}, only among others: {disagreement}")


def _tell(bench: Bench, seed: int, number: int, history: History) -> str:
    short, problem = shrunk(history, bench.judge_alone)
    lines = [
        f"history {number} of seed {seed} disagrees at step {problem.step + 1}: {problem.what}",
        "the shortest history found, with what the oracle expects:",
        json.dumps(with_expectations(short), ensure_ascii=False),
    ]
    return "\n".join(lines)


def with_expectations(history: History) -> JsonObject:
    """As a line of cases/limits.jsonl."""
    steps = [
        step | ({"expect": asdict(decision)} if decision else {})
        for step, decision in zip(history.steps, history.expected, strict=True)
    ]
    return {"id": "found", "why": "", "limit": history.limit, "steps": steps}


def shrunk(history: History, judge: Callable[[History], Disagreement | None]) -> tuple[History, Disagreement]:
    """A history as short as can be found in time that still disagrees: a prefix, then ever fewer of its steps."""
    problem = judge(history)
    assert problem, "it has to disagree in the first place"
    history = History.answered(history.limit, history.steps[: problem.step + 1])
    deadline = time.monotonic() + _SHRINK_SECONDS
    chunk = len(history.steps) // 2
    while chunk >= 1 and time.monotonic() < deadline:
        start = 0
        while start < len(history.steps) and time.monotonic() < deadline:
            fewer = History.answered(history.limit, history.steps[:start] + history.steps[start + chunk :])
            still = judge(fewer) if fewer.steps else None
            if still:
                history = History.answered(fewer.limit, fewer.steps[: still.step + 1])
            else:
                start += chunk
        chunk //= 2
    problem = judge(history)
    assert problem, "a replay gives the same answers twice"
    return history, problem


# The command


def _count(text: str) -> int:
    factors = {"k": 1_000, "M": 1_000_000}
    return int(text[:-1]) * factors[text[-1]] if text[-1] in factors else int(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=_count, default=200_000, help="in total, like 200k or 10M")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=[*STORES, "both"], default="both")
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--max-tiers", type=int, default=4, help="1: no tiers")
    parser.add_argument("--no-ticks", action="store_true", help="no limits that are counted in ticks")
    parser.add_argument("--no-shadow", action="store_true")
    parser.add_argument("--only", type=int, metavar="N", help="history N of this seed alone")
    parser.add_argument("--bin", type=Path, default=default_binary(), help="the allowd to run")
    return parser.parse_args()


def main() -> int:
    arguments = _arguments()
    wishes = Wishes(arguments.algorithms, arguments.max_tiers, not arguments.no_ticks, not arguments.no_shadow)
    plan = Plan(arguments.seed, arguments.steps, wishes)
    started = time.monotonic()

    def report(steps: int) -> None:
        print(f"\r{steps:,} steps, {steps / (time.monotonic() - started):,.0f}/s", end="", file=sys.stderr, flush=True)

    with ExitStack() as cleanup:
        bench = open_bench(cleanup, arguments.bin, STORES if arguments.store == "both" else [arguments.store])
        chosen = plan.batches() if arguments.only is None else [{arguments.only: plan.history(arguments.only)}]
        try:
            agreed = run(bench, chosen, plan.seed, report)
        except Failed as failure:
            print(f"\n{failure}")
            return 1
    print(f"\n{agreed:,} steps agreed in {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
