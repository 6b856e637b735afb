#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How many instructions the agent spends on a query that it answers itself. README.md says what is counted.

    tests/bench/instructions.py --bin build/release/bin [--only SCENARIO] [--count N] [--functions N]

It needs valgrind, whose callgrind counts them, and redis-server.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.dont_write_bytecode = True  # a benchmark leaves no files in the sources

from redis_sides import check_sources, wait_for_store  # noqa: E402
from servers import BenchError, Stage  # noqa: E402
from wire import WireError  # noqa: E402

_WARM_UP = ("--count", "20000")  # every key is known afterwards, and every buffer as large as it will be
_MOST_ASTRAY = 0.001  # of the queries: allowed where all should be refused, or the other way round
_READY_LIMIT = '[limits.ready]\nrate = "1000/s"'
_MILLION = 'rate = "1000000/s"\nburst = 1000000'


@dataclass(frozen=True)
class Scenario:
    """A load of bench.py's, on an agent that callgrind runs."""

    name: str
    about: str
    limit: str
    load: tuple[str, ...]
    are_allowed: bool
    on_redis: bool = False


SCENARIOS = [
    Scenario(
        "local_depth128",
        "the memory store, 1,000 keys, all allowed",
        _MILLION,
        ("--depth", "128", "--keys", "1000"),
        are_allowed=True,
    ),
    Scenario(
        "local_one_key",
        "the memory store, one key, all allowed",
        _MILLION,
        ("--depth", "128", "--keys", "1"),
        are_allowed=True,
    ),
    Scenario(
        "hot_key_1_per_min",
        "one key on Redis, refused by the pre-filter",
        'rate = "1/min"',
        ("--depth", "128", "--keys", "1"),
        are_allowed=False,
        on_redis=True,
    ),
]


def profile(directory: Path, scenario: Scenario, count: int) -> Counter[str]:
    """The instructions per query of every function, without those of the functions that it calls."""
    with Stage(directory) as outer, Stage(directory, agent_under=_callgrind(outer.directory)) as stage:
        port = stage.start_redis() if scenario.on_redis else None
        agent = stage.start_agent(f"[limits.bench]\n{scenario.limit}\n{_READY_LIMIT}", redis_port=port)
        if scenario.on_redis:
            wait_for_store(stage, agent, "ready")
        stage.load(agent, *scenario.load, *_WARM_UP)
        _control("--zero", agent.pid)
        load = stage.load(agent, *scenario.load, "--count", str(count))
        _control("--dump", agent.pid)
        check_sources(load)
        astray = load.total_queries - load.total_allowed if scenario.are_allowed else load.total_allowed
        if astray > _MOST_ASTRAY * load.total_queries:
            raise BenchError(f"{load.total_allowed} of {load.total_queries} queries were allowed")
        costs = _own_costs((outer.directory / "profile.1").read_text())
        return Counter({name: cost / load.total_queries for name, cost in costs.items()})


def _callgrind(directory: Path) -> tuple[str, ...]:
    program = shutil.which("valgrind")
    if program is None:
        raise BenchError("valgrind is not installed")
    return (program, "--tool=callgrind", f"--callgrind-out-file={directory / 'profile'}")


def _control(what: str, pid: int) -> None:
    done = subprocess.run(["callgrind_control", what, str(pid)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BenchError(f"callgrind_control {what}: {done.stderr.strip() or done.stdout.strip()}")


def _own_costs(dump: str) -> Counter[str]:
    """By function. See "Callgrind Format Specification" in valgrind's manual: a name stands at its first use only, and
    the line behind `calls=` is what was called."""
    names: dict[str, str] = {}
    costs: Counter[str] = Counter()
    function = ""
    is_callee = False
    for line in dump.splitlines():
        if found := re.match(r"c?fn=\((\d+)\)(?: (.*))?$", line):
            if found[2]:
                names[found[1]] = found[2]
            if line.startswith("fn="):
                function = found[1]
        elif line.startswith("calls="):
            is_callee = True
        elif re.match(r"[\d+*-]", line):
            if not is_callee:
                costs[function] += int(line.split()[1])
            is_callee = False
    return Counter({names[function]: cost for function, cost in costs.items()})


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Counts the agent's instructions per query.")
    parser.add_argument("--bin", type=Path, required=True, help="directory of the executables (a release build)")
    parser.add_argument("--only", choices=[scenario.name for scenario in SCENARIOS], help="run this scenario alone")
    parser.add_argument("--count", type=int, default=200_000, help="queries that are counted (200000)")
    parser.add_argument("--functions", type=int, default=0, metavar="N", help="also print the N costliest functions")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # so that the processes started are ended too
    for scenario in SCENARIOS:
        if arguments.only not in (None, scenario.name):
            continue
        try:
            costs = profile(arguments.bin.resolve(), scenario, arguments.count)
        except (BenchError, WireError, OSError) as error:
            print(f"{scenario.name} could not be run: {error}", file=sys.stderr)
            return 1
        print(f"{costs.total():8.1f}  {scenario.name}: {scenario.about}", flush=True)
        for name, cost in costs.most_common(arguments.functions):
            print(f"{cost:14.1f}  {name}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
