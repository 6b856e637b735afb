# SPDX-License-Identifier: MIT
"""What every scenario is given: servers, agents, a proxy, a load, seeded dice; and the table of all scenarios.

Ownership  A Scene owns everything that was started through it, and close() ends exactly that.
"""

from __future__ import annotations

import io
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

from daemon import Agent, Rack
from fault_proxy import Proxy
from processes import wait_until
from redis_server import RedisServer
from traffic import Question, Traffic

RECONNECT_MAX = 0.25  # seconds, unless a scenario is about another
# After the server is there again the agent has found it: the longest wait, signing in, and the first answer.
BACK_SECONDS = 2.0
ATTEMPTS_PER_SECOND = 3


class Skipped(Exception):
    """This machine does not allow it; the text says what."""


class Scene:
    """One run of one scenario."""

    def __init__(self, name: str, seed: int, seconds: float) -> None:
        self.seed = f"{seed}/{name}"
        self.dice = random.Random(self.seed)
        self.seconds = seconds  # how long its faults go on
        self._cleanup = ExitStack()
        self.directory = Path(tempfile.mkdtemp(prefix="allowd-chaos-"))
        self._cleanup.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self._rack = Rack(self.directory)
        self._servers = 0
        self.logs = ""

    def close(self) -> None:
        """Ends the agents first, and fails if one of them did not end well. `logs` has what they said."""
        said = io.StringIO()
        try:
            with redirect_stdout(said):
                self._rack.close()
        finally:
            self.logs = said.getvalue()
            self._cleanup.close()

    def own(self, close: Callable[[], object]) -> None:
        """To be called at the end."""
        self._cleanup.callback(close)

    # Making things

    def redis(self, *options: str, within: Sequence[str] = ()) -> RedisServer:
        """A running server."""
        self._servers += 1
        server = RedisServer(self.directory / f"redis{self._servers}", *options, within=within)
        self.own(server.close)
        server.start()
        return server

    def proxy(self, upstream_port: int) -> Proxy:
        proxy = Proxy(upstream_port, self.seed)
        self.own(proxy.close)
        return proxy

    def agent(
        self,
        redis: str,
        limits: str,
        *,
        agent: str = "",
        prefilter: str = "",
        environment: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
        wait: bool = True,
    ) -> Agent:
        """A running agent; `redis` and the others are the lines of those tables."""
        path = self._rack.new_path(".sock")
        tables = f"[prefilter]\n{prefilter}\n\n{limits}" if prefilter else limits
        config = self._rack.write_config(tables, path=path, agent=agent, redis=redis)
        arguments = ["--config", str(config)]
        return self._rack.start_command(arguments, path, environment, within=within, wait=wait)

    def traffic(
        self, agents: Sequence[Agent], questions: Sequence[Question], servers: Sequence[RedisServer] = ()
    ) -> Traffic:
        traffic = Traffic(agents, questions, seed=self.seed, servers=servers)
        self.own(lambda: traffic.__exit__())
        return traffic

    # Waiting

    @staticmethod
    def wait_until_up(*agents: Agent) -> None:
        for agent in agents:
            wait_until(lambda: not agent.ask("info")["degraded"], "the agent has found its servers", 30)  # noqa: B023

    @staticmethod
    def let_come_back(*agents: Agent, limit: str) -> None:
        """Until the store answers for that limit, or should have long ago, and a little more."""
        give_up = time.monotonic() + 2 * BACK_SECONDS
        while time.monotonic() < give_up and any(agent.peek(limit, "probe").source != "store" for agent in agents):
            time.sleep(0.02)
        time.sleep(0.3)

    @staticmethod
    def wait_until_settled(*agents: Agent) -> None:
        """What the agents still owe has been given back."""
        for agent in agents:
            wait_until(lambda: agent.metric("queries_open") == 0, "no query waits")  # noqa: B023
            wait_until(lambda: agent.metric("redis_questions_open") == 0, "Redis has answered all")  # noqa: B023


def redis_table(url: str = "", *, reconnect_max: float = RECONNECT_MAX, **shards: str) -> str:
    """The lines of an agent's [redis] table: one URL, or the shards' by their names."""
    listed = ", ".join(f'{{ name = "{name}", url = "{address}" }}' for name, address in shards.items())
    where = f"shards = [ {listed} ]" if shards else f'url = "{url}"'
    return f'{where}\nreconnect_max = "{reconnect_max * 1000:.0f}ms"'


def attempts_allowed(seconds: float, endpoints: int = 1) -> float:
    """How many connections may be tried in that time: one at once, then three a second."""
    return endpoints * (ATTEMPTS_PER_SECOND * seconds + 2)


def moments() -> int:
    return time.monotonic_ns()


Figures = str  # of one run, for people
Run = Callable[[Scene], Figures]
SCENARIOS: dict[str, Run] = {}


def scenario(run: Run) -> Run:
    """Adds it to the table, under its own name."""
    SCENARIOS[run.__name__] = run
    return run
