# SPDX-License-Identifier: MIT
"""A steady load from several connections that notices every query answered twice, late or never.

Threads    One per connection. `finish` joins them; leaving the context does too, without a verdict.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType

from daemon import Agent
from rpc import Client, Decision, HungUp, request

# A query may be this much later than its deadline before that counts as late: the machine is shared.
GRACE_SECONDS = 1.0


@dataclass(frozen=True)
class Sample:
    """One answered query."""

    key: str
    asked_at: float
    took: float  # seconds
    decision: Decision


@dataclass
class Result:
    samples: list[Sample] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def granted(self) -> Counter[str]:
        """How many queries passed, by key."""
        return Counter(sample.key for sample in self.samples if sample.decision.allowed)

    def sources_since(self, moment: float) -> Counter[str]:
        return Counter(sample.decision.source for sample in self.samples if sample.asked_at >= moment)

    def check_times(self, deadline: float) -> None:
        """Every query was answered once, none far behind its deadline, and most well before it."""
        assert not self.problems, self.problems
        times = [sample.took for sample in self.samples]
        assert len(times) > 100, "too little was asked to say anything"
        late = [took for took in times if took > deadline + GRACE_SECONDS]
        assert not late, f"{len(late)} of {len(times)} answers were late, up to {max(late):.3f} s"
        assert statistics.median(times) < deadline, "most answers come well before the deadline"


class Load:
    """Asks about `keys` of one limit from several connections, a few queries at a time on each."""

    PIPELINED = 8
    PAUSE_SECONDS = 0.01
    GIVE_UP_SECONDS = 20.0  # an answer that has not come by then never will

    def __init__(self, agent: Agent, limit: str, keys: Iterable[str], connections: int = 6) -> None:
        self._agent = agent
        self._limit = limit
        self._keys = list(keys)
        self._stop = threading.Event()
        self._results = [Result() for _ in range(connections)]
        self._threads = [
            threading.Thread(target=self._run, args=(number, result)) for number, result in enumerate(self._results)
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._join()

    def finish(self) -> Result:
        """Stops asking, waits for what is still open, and says how it went."""
        self._join()
        whole = Result()
        for result in self._results:
            whole.samples += result.samples
            whole.problems += result.problems
        return whole

    def _join(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int, result: Result) -> None:
        try:
            with Client(self._agent.path, self.GIVE_UP_SECONDS) as client:
                msgid = 0
                while not self._stop.is_set():
                    self._ask_some(client, msgid, number, result)
                    msgid += self.PIPELINED
                    time.sleep(self.PAUSE_SECONDS)
                if not client.stays_silent(0.2):
                    result.problems.append("something came after every query had its answer")
        except TimeoutError:
            result.problems.append(f"a query had no answer after {self.GIVE_UP_SECONDS:g} s")
        except (HungUp, OSError) as problem:
            result.problems.append(f"the connection ended: {problem!r}")

    def _ask_some(self, client: Client, first: int, number: int, result: Result) -> None:
        open_queries = {
            msgid: self._keys[(msgid + number) % len(self._keys)] for msgid in range(first, first + self.PIPELINED)
        }
        asked_at = time.monotonic()
        client.send(b"".join(request("allow", self._limit, key, msgid=msgid) for msgid, key in open_queries.items()))
        while open_queries:
            reply = client.receive()
            key = open_queries.pop(reply.msgid, None)
            if key is None:
                result.problems.append(f"msgid {reply.msgid} was answered again")
            elif reply.error is not None:
                result.problems.append(reply.error)
            else:
                took = time.monotonic() - asked_at
                result.samples.append(Sample(key, asked_at, took, Decision(*reply.result)))
