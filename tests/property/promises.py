# SPDX-License-Identifier: MIT
"""Promise 1 on the answers alone, without the oracle: never more than the limit.

It holds where nothing but queries happens: no refund, no force, no changed limit, no shadow.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence

from histories import History
from oracle import JsonObject, Limit, Tier

Admitted = list[tuple[int, int]]  # time and cost, in order


def broken_promise(history: History, answers: Sequence[JsonObject]) -> str:
    """What was admitted beyond a limit; empty if nothing."""
    limit = Limit.of_table(history.limit)
    if limit.shadow or any(step["op"] not in ("allow", "peek") for step in history.steps):
        return ""
    admitted: dict[str, Admitted] = defaultdict(list)
    for step, answer in zip(history.steps, answers, strict=True):
        if step["op"] == "allow" and step["cost"] > 0 and answer["allowed"]:
            admitted[step["key"]].append((step["t"], step["cost"]))
    for key, charges in admitted.items():
        for tier in limit.tiers:
            if not tier.shadow and (excess := _excess(tier, charges)):
                return f"key {key!r} got more than tier {tier.name!r} has: {excess}"
    return ""


def _excess(tier: Tier, charges: Admitted) -> str:
    if tier.algorithm == "token_bucket":
        return _bucket_excess(tier, charges)
    if tier.algorithm == "fixed_window":
        return _fixed_window_excess(tier, charges)
    if tier.algorithm == "sliding_log":
        return _log_excess(tier, charges)
    return ""  # a sliding window's bound is its formula


def _bucket_excess(tier: Tier, charges: Admitted) -> str:
    """admitted <= burst + count/period * T for every interval, written as sums up to its two ends."""
    latest = total = 0
    lowest = math.inf  # of what was admitted before the interval, less what came back until its start
    for time, cost in charges:
        latest = max(latest, time)  # in the bucket's time, which never goes back
        back = tier.count * latest
        lowest = min(lowest, total * tier.period - back)
        total += cost
        if total * tier.period - back - lowest > tier.capacity * tier.period:
            return f"burst + rate * T is passed at {time}"
    return ""


def _fixed_window_excess(tier: Tier, charges: Admitted) -> str:
    start, count = -tier.period, 0
    for time, cost in charges:
        if time >= start + tier.period:
            start, count = (time if tier.align == "first" else time - time % tier.period), 0
        count += cost
        if count > tier.capacity:
            return f"{count} in the window from {start}"
    return ""


def _log_excess(tier: Tier, charges: Admitted) -> str:
    latest = count = 0
    within: deque[tuple[int, int]] = deque()
    for time, cost in charges:
        latest = max(latest, time)
        within.append((latest, cost))
        count += cost
        while within[0][0] <= latest - tier.period:
            count -= within.popleft()[1]
        if count > tier.capacity:
            return f"{count} in the {tier.period} us up to {latest}"
    return ""
