# SPDX-License-Identifier: MIT
"""Whether the agents kept their promises, judged from what each query met.

Nothing here excuses an agent for what it did itself. What is taken off, and only from an answer that came late: the
time for which the kernel kept the agent's thread waiting for a processor, or the hypervisor the machine, while that
query was open; and, for the bound on the latest one, the lag that the agent's own loop has recorded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from daemon import Agent
from traffic import Report, Sample

GRACE_NS = 5_000_000  # over the deadline
_SHARE_IN_TIME = 0.9999
_CURVE_STEP_NS = 6_000_000  # by when what has happened is in the curve of what the agents were kept from
_TOLD_WITHIN_NS = 1_500_000_000  # a turn is in what the agent says of itself for a second or two
_LATE_FOR_NS = 31_000_000_000  # after which an agent listens no more to a connection that owes it answers
_MOST_STARTS = 200  # of the intervals that are looked at, for each key

class Broken(AssertionError):
    """A promise was not kept."""


def demand(holds: bool, promise: str) -> None:
    if not holds:
        raise Broken(promise)


def grown(curve: Sequence[tuple[int, int]], begin: int, end: int) -> int:
    """How much a curve of (moment, sum) rose between the last point before `begin` and the last by `end`."""
    if not curve:
        return 0
    first = max(bisect_right(curve, (begin, 1 << 62)) - 1, 0)
    last = max(bisect_right(curve, (end, 1 << 62)) - 1, first)
    return curve[last][1] - curve[first][1]


def lag_of_loop(report: Report, agent: int, moment: int) -> int:
    """The longest turn, in ns, that the agent recorded in the second of that moment or beside it."""
    turns = (w.longest_turn for w in report.watched[agent] if moment <= w.moment <= moment + _TOLD_WITHIN_NS)
    return max(turns, default=0)


def _under_way(curve: Sequence[tuple[int, int]], moment: int) -> int:
    """For how long a wait had lasted by then that ended later: a wait is in the curve when it ends."""
    place = bisect_right(curve, (moment, 1 << 62))
    if not 0 < place < len(curve):
        return 0
    began = curve[place][0] - (curve[place][1] - curve[place - 1][1])
    return max(moment - began, 0)


@dataclass(frozen=True)
class Times:
    queries: int
    median_ms: float
    p99_ms: float
    late: int  # known to have come over 5 ms behind their deadline
    late_of_agent: int  # of these, still so when the agent's waits for a processor are taken off
    latest_ms: float  # behind the deadline, with that taken off; negative when all were in time
    beyond_lag: int  # later than 5 ms and the lag that the agent has recorded
    blind_ms: float  # the longest time for which the client did not look
    not_sent: int  # queries for which the kernel had no room: the agent did not read

    def __str__(self) -> str:
        late = f"{self.late_of_agent} late"
        if self.late > self.late_of_agent:
            late += f" (and {self.late - self.late_of_agent} for want of a processor)"
        return (
            f"{self.queries} queries, p50 {self.median_ms:.1f} ms, p99 {self.p99_ms:.1f} ms, {late}, "
            f"latest {self.latest_ms:+.1f} ms, blind {self.blind_ms:.0f} ms"
            + (f", {self.not_sent} not sent" if self.not_sent else "")
        )


def times_of(report: Report) -> Times:
    demand(len(report.samples) > 100, f"only {len(report.samples)} queries were answered: too few to say anything")
    took = sorted(sample.seen_at - sample.asked_at for sample in report.samples)
    late = late_of_agent = beyond_lag = 0
    latest = -(1 << 62)
    for sample in report.samples:
        deadline = int(report.questions[sample.question].deadline * 1e9)
        behind = sample.not_before - sample.sent_at - deadline
        if behind > GRACE_NS:
            late += 1
            behind -= starved(report, sample)
            late_of_agent += behind > GRACE_NS
            beyond_lag += behind > GRACE_NS + lag_of_loop(report, sample.agent, sample.not_before)
        latest = max(latest, behind)
    return Times(
        queries=len(took),
        median_ms=took[len(took) // 2] / 1e6,
        p99_ms=took[len(took) * 99 // 100] / 1e6,
        late=late,
        late_of_agent=late_of_agent,
        latest_ms=latest / 1e6,
        beyond_lag=beyond_lag,
        blind_ms=report.longest_blindness / 1e6,
        not_sent=report.not_sent,
    )


def starved(report: Report, sample: Sample) -> int:
    """For how many ns the agent was kept from a processor while this query was open."""
    window = sample.asked_at, sample.seen_at + _CURVE_STEP_NS
    return grown(report.starvation[sample.agent], *window) + grown(report.steal, *window)


def check_answers(report: Report) -> Times:
    """Every query answered once, 99.99 % within 5 ms of the deadline, none later than that and the agent's own lag."""
    problems = Counter(report.problems)
    demand(not problems, "; ".join(f"{count} times: {what}" for what, count in problems.most_common(5)))
    times = times_of(report)
    demand(times.late_of_agent <= times.queries * (1 - _SHARE_IN_TIME), f"more than one in 10,000 was late: {times}")
    demand(times.beyond_lag == 0, f"{times.beyond_lag} came later than the agent's own lag explains: {times}")
    return times


# Never more than the limit


class Bucket(NamedTuple):
    burst: int
    rate: float  # permits a second


class Fleet(NamedTuple):
    """What agents say that bears on how exact they were."""

    clock_error: float = 0.0  # seconds: how far two measured offsets may be apart
    given_back: int = 0  # grants that came too late


def fleet(report: Report, agents: Sequence[Agent]) -> Fleet:
    """What they said while they were asked, and say now."""
    uncertainties = [watched.clock_uncertainty for of_agent in report.watched for watched in of_agent]
    uncertainties += [agent.metric("redis_clock_uncertainty_seconds") for agent in agents]
    given_back = sum(agent.metric("redis_given_back_total") for agent in agents)
    return Fleet(2 * max(uncertainties), round(given_back))


def granted(samples: Iterable[Sample]) -> list[Sample]:
    """Those that passed and were counted: a fallback's are the policy's."""
    return [sample for sample in samples if sample.allowed and sample.source in ("store", "local")]


def most_beyond(report: Report, samples: Iterable[Sample], burst: int, rate: float, given_back: int = 0) -> float:
    """How many permits more than burst + rate * T were granted, in the interval in which that is the most.

    A query was decided at some moment between its sending and its answer, so one counts for an interval that holds
    both: what is found has really happened. Negative when it was less everywhere.

    A grant that came after its query was refused goes back, as a refund; then another query may have it, though the
    bucket may have refilled between. So from each interval as many are taken off as queries about that key were
    refused for having waited too long, but no more than `given_back`, which the agents say they gave back at all.
    """
    by_key: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_key[sample.key].append(sample)
    found = (_most_beyond_of_key(report, of_key, burst, rate, given_back) for of_key in by_key.values())
    return max(found, default=-float(burst))


def _most_beyond_of_key(report: Report, samples: list[Sample], burst: int, rate: float, given_back: int) -> float:
    in_order = sorted((sample.seen_at, sample.asked_at) for sample in granted(samples))
    late = sorted(sample.asked_at for sample in samples if _has_waited_in_vain(report, sample))
    starts = sorted(asked_at for _, asked_at in in_order)
    worst = -float(burst)
    for start in starts[:: max(len(starts) // _MOST_STARTS, 1)]:
        count = 0
        before = bisect_right(late, start - _LATE_FOR_NS)
        for seen_at, asked_at in in_order:
            if asked_at >= start:
                count += 1
                refunds = min(bisect_right(late, seen_at) - before, given_back)
                worst = max(worst, count - refunds - burst - rate * (seen_at - start) / 1e9)
    return worst


def _has_waited_in_vain(report: Report, sample: Sample) -> bool:
    deadline = report.questions[sample.question].deadline
    return sample.verdict == "unavailable" and sample.seen_at - sample.asked_at > 0.9e9 * deadline


def check_exact(
    report: Report, samples: Iterable[Sample], limit: Bucket, agents: Fleet, *, stated_loss: float = 0.0
) -> float:
    """Never more than burst + rate * T, and what is stated to have been lost, in permits of each key. Returns the most
    that it was beyond the former; negative when it was less."""
    beyond = most_beyond(report, samples, limit.burst, limit.rate, agents.given_back)
    allowed = limit.rate * agents.clock_error + stated_loss + 1e-6
    demand(beyond <= allowed, f"{beyond:.2f} permits more than burst + rate * T were granted: {agents}")
    return beyond


# Coming back


def first_answer_of_store(samples: Iterable[Sample], since: int) -> float:
    """Seconds from that moment to the first answer of the store to a query asked since."""
    first = min((s.seen_at for s in samples if s.asked_at >= since and s.source == "store"), default=None)
    demand(first is not None, "the store never answered again")
    assert first is not None
    return (first - since) / 1e9


def share_of_store(report: Report, samples: Iterable[Sample]) -> float:
    """Of the answers to those, without the queries for half of whose time agent or servers were kept from running."""
    judged = [sample for sample in samples if not _was_held_up(report, sample)]
    demand(len(judged) > 100, f"only {len(judged)} queries met nobody who wanted for a processor")
    return sum(sample.source == "store" for sample in judged) / len(judged)


def _was_held_up(report: Report, sample: Sample) -> bool:
    window = sample.asked_at, sample.seen_at + _CURVE_STEP_NS
    waited = starved(report, sample)
    for curve in report.server_starvation:
        waited += grown(curve, *window) + _under_way(curve, window[1])
    return waited > report.questions[sample.question].deadline * 1e9 / 2
