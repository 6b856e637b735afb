#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Faults, seeded, against the real daemon and real Redis servers: one line a scenario.

    tests/chaos/run.py                               every scenario, about a minute
    tests/chaos/run.py --seed 7 proxy restarts       these two with another seed
    tests/chaos/run.py --seed 7 --seconds 600 proxy  a soak: the faults of each go on for ten minutes
    tests/chaos/run.py --rounds 50                   all of them again and again, with the next seed each time

Exits with 1 when a promise was broken; what was broken, and the seed, stand in that line.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "e2e")]

# Each adds its own to the table.
import cluster_scenarios  # noqa: E402, F401
import fleet_scenarios  # noqa: E402, F401
import network_scenarios  # noqa: E402, F401
import outage_scenarios  # noqa: E402, F401
import proxy_scenarios  # noqa: E402, F401
import sentinel_scenarios  # noqa: E402, F401
import server_scenarios  # noqa: E402, F401
from scenario import SCENARIOS, Scene, Skipped  # noqa: E402

SKIPPED = 77  # the exit code when nothing ran


def run(name: str, seed: int, seconds: float, is_verbose: bool) -> str:
    """Prints the line, and returns its first word."""
    begin = time.monotonic()
    scene = Scene(name, seed, seconds)
    try:
        try:
            outcome, text = "ok", SCENARIOS[name](scene)
        finally:
            scene.close()
    except Skipped as reason:
        outcome, text = "skipped", str(reason)
    except Exception as problem:
        outcome, text = "FAILED", f"seed {seed}: {problem}"
        if is_verbose or not isinstance(problem, AssertionError):
            traceback.print_exc()
    if outcome == "FAILED" or is_verbose:
        print(scene.logs, end="", file=sys.stderr, flush=True)
    print(f"{outcome:7} {name:16} {time.monotonic() - begin:5.1f} s  {text}", flush=True)
    return outcome


def _arguments(names: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", nargs="*", help=f"of {', '.join(names)}; all unless some are named")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long the faults of each scenario go on")
    parser.add_argument("--rounds", type=int, default=1, help="how often, with the next seed each time")
    parser.add_argument(
        "--verbose", action="store_true", help="tell where a broken promise was noticed, and what the agents logged"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.scenario) - set(names):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    return arguments


def main() -> int:
    arguments = _arguments(list(SCENARIOS))
    outcomes = [
        run(name, seed, arguments.seconds, arguments.verbose)
        for seed in range(arguments.seed, arguments.seed + arguments.rounds)
        for name in arguments.scenario or SCENARIOS
    ]
    if "FAILED" in outcomes:
        return 1
    return 0 if "ok" in outcomes else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
