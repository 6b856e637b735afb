# SPDX-License-Identifier: MIT
"""Two limits to be asked about: one so tight that it is always drained, one so slow that Redis holds every charge."""

from __future__ import annotations

from collections.abc import Sequence

from redis_server import RedisServer
from traffic import Question, Report
from verdict import Bucket, demand, granted

DEADLINE = 0.05  # seconds
TIGHT = Bucket(burst=20, rate=10)
LIMITS = f"""
[limits.tight]
rate = "{TIGHT.rate}/s"
burst = {TIGHT.burst}
on_failure = "deny"
deadline = "{DEADLINE * 1000:.0f}ms"

# A permit comes back in five hours.
[limits.counted]
rate = "1/5h"
burst = 1900
on_failure = "deny"
deadline = "{DEADLINE * 1000:.0f}ms"
"""
COUNTED_KEYS = [f"counted{number}" for number in range(400)]
TIGHT_KEYS = [f"tight{number}" for number in range(6)]
QUESTIONS = [Question("counted", COUNTED_KEYS, DEADLINE, 2.0), Question("tight", TIGHT_KEYS, DEADLINE)]


def charged(servers: Sequence[RedisServer]) -> dict[str, int]:
    """What the masters among them hold of the counted keys."""
    found = {}
    for server in servers:
        if not server.is_running() or server.call("ROLE")[0] != b"master":
            continue
        for key in server.keys():
            name = key.rsplit(b":", 1)[1].decode()
            if name.startswith("counted"):
                found[name] = server.bucket(key).permits_used
    return found


def check_counted(report: Report, servers: Sequence[RedisServer]) -> int:
    """Redis knows of every grant. Returns how many it charged beside: those of calls that were lost."""
    charges = charged(servers)
    grants = dict.fromkeys(charges, 0)
    for sample in granted(report.of("counted")):
        demand(sample.key in charges, f"{sample.key} was granted, and Redis does not know it")
        grants[sample.key] += 1
    for key, count in grants.items():
        demand(count <= charges[key], f"{key} was granted {count} times, and charged {charges[key]} times")
    return sum(charges.values()) - sum(grants.values())
