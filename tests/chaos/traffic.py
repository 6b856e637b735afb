# SPDX-License-Identifier: MIT
"""Seeded queries at a steady rate, each with a message id of its own, and what became of every one.

One process with one thread asks several agents over several connections. It sends whatever the agents are doing
(an open load), and notices what is answered twice, wrongly or never.

When an answer came is told by two times: `not_before`, the last look at the connection that did not find it, and
`seen_at`. This process looks at least once a millisecond unless it is kept from its processor, and then the two are
far apart. So an answer counts as late only when it was looked for in vain after its time: what this process missed is
not the agent's fault. See README.md.

Units      All times are time.monotonic_ns(), which all processes of the machine share.
"""

from __future__ import annotations

import os
import random
import select
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import msgpack

from child import Child
from daemon import Agent
from redis_server import RedisServer

_LOOK_NS = 1_000_000
_STARVATION_NS = 2_000_000  # between two looks at how long the agents were kept from a processor
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_GIVE_UP_NS = 5_000_000_000  # an answer that is not there so long after its deadline never comes
_WATCH_NS = 400_000_000
_SILENCE_NS = 200_000_000  # after the last answer nothing may come


@dataclass(frozen=True)
class Question:
    """What is asked: some key of a limit."""

    limit: str
    keys: Sequence[str]
    deadline: float  # seconds; the limit's own, or given with each query when `sends_deadline`
    weight: float = 1.0
    sends_deadline: bool = False


class Sample(NamedTuple):
    """One answered query."""

    agent: int  # its place in the list
    question: int  # likewise
    key: str
    asked_at: int
    sent_at: int  # asked_at, once the kernel had it
    not_before: int
    seen_at: int
    allowed: bool
    verdict: str
    source: str


class Watched(NamedTuple):
    """What an agent said of itself."""

    moment: int
    longest_turn: int  # ns of processor time, of its loop, in the second of that moment and the one before
    clock_uncertainty: float  # seconds


@dataclass
class Report:
    questions: Sequence[Question]
    samples: list[Sample] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    # Of each agent: how long it had been kept from a processor by then, in ns, whenever that had grown.
    starvation: list[list[tuple[int, int]]] = field(default_factory=list)
    server_starvation: list[list[tuple[int, int]]] = field(default_factory=list)  # likewise of each server
    # Likewise how long the hypervisor kept the machine's processors, all together.
    steal: list[tuple[int, int]] = field(default_factory=list)
    watched: list[list[Watched]] = field(default_factory=list)  # of each agent, several times a second
    not_sent: int = 0  # since the agent had not read what was sent before: it, or this process, was kept from running
    longest_blindness: int = 0  # ns between two looks, at the most

    def of(self, limit: str) -> list[Sample]:
        return [sample for sample in self.samples if self.questions[sample.question].limit == limit]


@dataclass(frozen=True)
class Plan:
    paths: Sequence[Path]
    pids: Sequence[int]
    server_pids: Sequence[int]
    questions: Sequence[Question]
    per_second: float
    connections: int  # to each agent
    seed: str


class Traffic:
    """Asks until finish(). How long `servers`, which must not end meanwhile, were kept from running is watched too."""

    def __init__(
        self,
        agents: Sequence[Agent],
        questions: Sequence[Question],
        *,
        seed: str,
        servers: Sequence[RedisServer] = (),
        per_second: float = 800.0,
        connections: int = 3,
    ) -> None:
        paths, pids = [agent.path for agent in agents], [agent.pid for agent in agents]
        server_pids = [server.pid for server in servers]
        plan = Plan(paths, pids, server_pids, questions, per_second, connections, seed)
        self._child = Child(_ask_until_told, plan)
        self._report: Report | None = None

    def __enter__(self) -> Traffic:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close()

    def finish(self) -> Report:
        """Stops asking, waits for what is still open, and says how it went."""
        if self._report is None:
            self._child.pipe.send("stop")
            report: Report = self._child.join()
            self._report = report
        return self._report


def _ask_until_told(pipe: Connection, plan: Plan) -> Report:
    return _Asker(plan, pipe).run()


def _note(curve: list[tuple[int, int]], now: int, value: int) -> None:
    if not curve or curve[-1][1] != value:
        curve.append((now, value))


class _Line:
    """One connection."""

    def __init__(self, agent: int, path: Path) -> None:
        self.agent = agent
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.socket.setblocking(False)
        self.unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)
        self.has_ended = False


class _Open(NamedTuple):
    line: _Line
    question: int
    key: str
    asked_at: int
    sent_at: int


class _Asker:
    def __init__(self, plan: Plan, pipe: Connection) -> None:
        self._plan = plan
        self._pipe = pipe
        self._dice = random.Random(plan.seed)
        self._weights = [question.weight for question in plan.questions]
        self._open: dict[int, _Open] = {}
        self._watches: dict[int, int] = {}  # of a message id the agent that was asked for its stats
        self._watched_at = 0
        self._last_msgid = 0
        self._report = Report(
            plan.questions,
            starvation=[[] for _ in plan.pids],
            server_starvation=[[] for _ in plan.server_pids],
            watched=[[] for _ in plan.pids],
        )
        self._poll = select.epoll()
        self._lines: dict[int, _Line] = {}
        for agent, path in enumerate(plan.paths):
            for _ in range(plan.connections):
                line = _Line(agent, path)
                self._lines[line.socket.fileno()] = line
                self._poll.register(line.socket.fileno(), select.EPOLLIN)
        self._poll.register(pipe.fileno(), select.EPOLLIN)
        curves = [*self._report.starvation, *self._report.server_starvation]
        self._schedstats = [
            (os.open(f"/proc/{pid}/schedstat", os.O_RDONLY), curve)
            for pid, curve in zip([*plan.pids, *plan.server_pids], curves, strict=True)
        ]
        self._machine = os.open("/proc/stat", os.O_RDONLY)
        self._starvation_looked_at = 0
        self._looked_at = 0

    def run(self) -> Report:
        self._looked_at = now = time.monotonic_ns()
        due = now
        is_asking = True
        silent_since = 0
        while True:
            now = time.monotonic_ns()
            if is_asking:
                due = self._send_what_is_due(due, now)
                if now - self._watched_at > _WATCH_NS:
                    self._watch(now)
            elif self._open or self._watches:
                self._give_up_lost(now)
                silent_since = now
            elif now - silent_since > _SILENCE_NS:
                return self._report
            wait = min(max(due - now, 0), _LOOK_NS) if is_asking else _LOOK_NS
            if self._look(wait):
                is_asking = False

    # Asking

    def _send_what_is_due(self, due: int, now: int) -> int:
        """Returns when the next query is due."""
        while due <= now:
            due += int(self._dice.expovariate(self._plan.per_second) * 1e9) + 1
            lines = [line for line in self._lines.values() if not line.has_ended]
            if lines:
                self._send(self._dice.choice(lines))
        return due

    def _send(self, line: _Line) -> None:
        (question,) = self._dice.choices(range(len(self._weights)), self._weights)
        asked = self._plan.questions[question]
        key = self._dice.choice(asked.keys)
        self._last_msgid += 1
        options = [{"deadline_us": round(asked.deadline * 1e6)}] if asked.sends_deadline else []
        data = msgpack.packb([0, self._last_msgid, "allow", [asked.limit, key, 1, *options]])
        asked_at = time.monotonic_ns()
        try:
            line.socket.sendall(data)  # a message so small goes as a whole, or not at all
        except BlockingIOError:
            self._report.not_sent += 1
            return None
        except OSError as problem:
            return self._end(line, f"a query could not be sent: {problem!r}")
        self._open[self._last_msgid] = _Open(line, question, key, asked_at, time.monotonic_ns())
        return None

    def _watch(self, now: int) -> None:
        self._watched_at = now
        for agent, line in {line.agent: line for line in self._lines.values() if not line.has_ended}.items():
            self._last_msgid += 1
            self._watches[self._last_msgid] = agent
            try:
                line.socket.sendall(msgpack.packb([0, self._last_msgid, "stats", []]))
            except OSError:
                del self._watches[self._last_msgid]  # the next query says what is wrong

    # Looking

    def _look(self, wait_ns: int) -> bool:
        """Takes what has arrived; true when the owner has said that it is enough."""
        before, self._looked_at = self._looked_at, time.monotonic_ns()
        self._report.longest_blindness = max(self._report.longest_blindness, self._looked_at - before)
        is_told = False
        for number, _ in self._poll.poll(wait_ns / 1e9):
            if number == self._pipe.fileno():
                self._pipe.recv()
                self._poll.unregister(number)
                is_told = True
            else:
                self._read(self._lines[number], before)
        if self._looked_at - self._starvation_looked_at > _STARVATION_NS:
            self._look_at_starvation()
        return is_told

    def _read(self, line: _Line, not_before: int) -> None:
        while True:
            try:
                data = line.socket.recv(65536)
            except BlockingIOError:
                break
            except OSError as problem:
                return self._end(line, f"the connection broke: {problem!r}")
            if not data:
                return self._end(line, "the agent hung up")
            line.unpacker.feed(data)
        seen_at = time.monotonic_ns()
        for kind, msgid, error, result in line.unpacker:
            if self._watches.pop(msgid, None) == line.agent and error is None:
                longest_turn = round(result.get("loop_recent_longest_turn_cpu_seconds", 0) * 1e9)
                watched = Watched(seen_at, longest_turn, result.get("redis_clock_uncertainty_seconds", 0.0))
                self._report.watched[line.agent].append(watched)
                continue
            asked = self._open.pop(msgid, None)
            if kind != 1 or asked is None or asked.line is not line:
                self._report.problems.append(f"msgid {msgid} was answered again, or was never asked")
            elif error is not None:
                self._report.problems.append(f"an error was answered: {error}")
            else:
                times = asked.asked_at, asked.sent_at, max(not_before, asked.sent_at), seen_at
                what = result[0], result[5], result[6]
                self._report.samples.append(Sample(line.agent, asked.question, asked.key, *times, *what))

    def _look_at_starvation(self) -> None:
        """The second number of schedstat: ns that the main thread was runnable and did not run."""
        now = self._starvation_looked_at = time.monotonic_ns()
        for file, curve in self._schedstats:
            try:
                _note(curve, now, int(os.pread(file, 100, 0).split()[1]))
            except OSError:
                continue  # it has ended, which connections tell
        _note(self._report.steal, now, int(os.pread(self._machine, 200, 0).split()[8]) * _TICK_NS)

    def _give_up_lost(self, now: int) -> None:
        lost = [
            msgid
            for msgid, asked in self._open.items()
            if now > asked.sent_at + self._plan.questions[asked.question].deadline * 1e9 + _GIVE_UP_NS
        ]
        for msgid in lost:
            del self._open[msgid]
            self._report.problems.append(f"the query with msgid {msgid} was never answered")
        if now > self._watched_at + _GIVE_UP_NS:
            self._report.problems += [f"stats with msgid {msgid} was never answered" for msgid in self._watches]
            self._watches.clear()

    def _end(self, line: _Line, problem: str) -> None:
        line.has_ended = True
        self._poll.unregister(line.socket.fileno())
        lost = [msgid for msgid, asked in self._open.items() if asked.line is line]
        for msgid in lost:
            del self._open[msgid]
        self._report.problems.append(f"{problem}, with {len(lost)} queries open")
