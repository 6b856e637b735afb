#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measures allowd against the servers it is compared with. README.md says what the figures mean.

Starts what it needs, ends only that, and leaves nothing behind. Exit code 0 if all scenarios ran, whether or not
the figures were met (a busy machine can miss them); 1 if one could not be run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Any

sys.dont_write_bytecode = True  # a benchmark leaves no files in the sources

import cluster_scenarios  # noqa: E402
import fleet_scenarios  # noqa: E402
import flood_scenarios  # noqa: E402
import hot_key_scenarios  # noqa: E402
import local_scenarios  # noqa: E402
import memory_scenarios  # noqa: E402
import redis_scenarios  # noqa: E402
import tls_scenarios  # noqa: E402
from scenario import Options, Result, Scenario  # noqa: E402
from servers import BenchError  # noqa: E402
from wire import WireError  # noqa: E402

SCENARIOS = [
    Scenario(
        "local_depth128",
        "one connection, 128 requests in flight, 1,000 keys: the memory store against an echo server",
        local_scenarios.local_depth128,
    ),
    Scenario(
        "local_depth128_each",
        "the same, but the client writes each request by itself",
        local_scenarios.local_depth128_each,
    ),
    Scenario(
        "local_one_at_a_time",
        "one connection, one request in flight: the memory store against an echo server",
        local_scenarios.local_one_at_a_time,
    ),
    Scenario(
        "redis_64x1",
        "64 connections, one request in flight each, 10,000 keys: the agent on Redis against one EVALSHA a request",
        redis_scenarios.redis_64x1,
    ),
    Scenario(
        "redis_64x16",
        "64 connections, 16 requests in flight each, 10,000 keys: the agent on Redis against one EVALSHA a request",
        redis_scenarios.redis_64x16,
    ),
    Scenario(
        "redis_tls_64x16",
        "the same load through an agent that reaches Redis over TLS: against one that does without",
        tls_scenarios.redis_tls_64x16,
    ),
    Scenario(
        "redis_cluster_64x16",
        "the same load on a Redis Cluster of 3 masters: the agent against one EVALSHA a request, sent to the right master",
        cluster_scenarios.redis_cluster_64x16,
    ),
    Scenario(
        "hot_key_1_per_min",
        "one key far over a limit of 1/min on Redis, 128 requests in flight: against an echo server",
        hot_key_scenarios.hot_key_1_per_min,
    ),
    Scenario(
        "hot_key_100_per_s",
        "one key far over a limit of 100/s on Redis, 128 requests in flight: against an echo server",
        hot_key_scenarios.hot_key_100_per_s,
    ),
    Scenario(
        "hot_key_leased",
        "one key of a limit of 1,000,000/s with a lease of 5 %, 16 requests in flight, all allowed: against an echo server",
        hot_key_scenarios.hot_key_leased,
    ),
    Scenario(
        "hot_key_under_limit",
        "one key under its limit on Redis, 64 connections: how many queries share a question, and how long they wait",
        hot_key_scenarios.hot_key_under_limit,
    ),
    Scenario(
        "zipf_million",
        "a million keys by Zipf's law, half of the queries over the limit: against one EVALSHA a request",
        hot_key_scenarios.zipf_million,
    ),
    Scenario(
        "split_4_shards",
        "one key that 8 agents drain, kept in 4 parts on 4 Redis servers",
        fleet_scenarios.split_4_shards,
    ),
    Scenario(
        "leased_4_agents",
        "one key that 4 agents drain, each with a lease of 5 % of the burst",
        fleet_scenarios.leased_4_agents,
    ),
    Scenario("idle", "fresh agents that nobody asks anything", memory_scenarios.idle),
    Scenario(
        "million_keys",
        "a million distinct keys into the memory store, watched by a second client",
        memory_scenarios.million_keys,
    ),
    Scenario(
        "spoofed_keys",
        "keys that are asked once and never again, with a budget of new keys, beside a client that asks known ones",
        flood_scenarios.spoofed_keys,
    ),
    Scenario("spoofed_keys_unbounded", "the same without a budget", flood_scenarios.spoofed_keys_unbounded),
]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measures allowd against the servers it is compared with.")
    parser.add_argument("--bin", type=Path, required=True, help="directory of the executables (a release build)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of A B in each scenario (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="measured per side and round (2)")
    parser.add_argument("--count", type=int, default=1_000_000, help="keys that spoofed_keys makes up (1000000)")
    parser.add_argument("--only", choices=[scenario.name for scenario in SCENARIOS], help="run this scenario alone")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or not arguments.seconds > 0 or arguments.count < 1:
        parser.error("--rounds, --seconds and --count must be positive")
    return arguments


def run(scenario: Scenario, options: Options) -> Result:
    print(f"{scenario.name}: {scenario.about}", flush=True)
    result = scenario.run(options)
    for figure in result.figures:
        print(figure.line())
    for note in result.notes:
        print(f"  {note}")
    print(flush=True)
    return result


def as_json(name: str, result: Result) -> dict[str, Any]:
    return {
        "name": name,
        "figures": [figure.as_json() for figure in result.figures],
        "notes": result.notes,
        "rounds": result.rounds,
    }


def main() -> int:
    arguments = parse_arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # so that the processes started are ended too
    options = Options(arguments.bin.resolve(), arguments.rounds, arguments.seconds, arguments.count)
    results: list[dict[str, Any]] = []
    failed = False
    for scenario in SCENARIOS:
        if arguments.only in (None, scenario.name):
            try:
                results.append(as_json(scenario.name, run(scenario, options)))
            except (BenchError, WireError, OSError) as error:
                print(f"  could not be run: {error}\n", file=sys.stderr, flush=True)
                failed = True
    if arguments.json is not None:
        host = {"cpus": os.cpu_count(), "machine": platform.machine(), "kernel": platform.release()}
        arguments.json.write_text(json.dumps({"host": host, "scenarios": results}, indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
