# SPDX-License-Identifier: MIT
"""A new configuration in a running agent: what changes, what stays, and what a faulty file does not do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

from daemon import Agent, Rack, is_sanitized, program
from load import Load
from processes import clean_environment, wait_until
from redis_server import RedisServer
from rpc import AdminClient, Decision, Refused

MIB = 1024 * 1024
PATIENT = 'deadline = "10s"\non_failure = "deny"\n'


def limit_table(name: str, *lines: str) -> str:
    return "\n".join([f"[limits.{name}]", *lines, PATIENT])


API = limit_table("api", 'rate = "10/day"')


class Site:
    """An agent and the file that it was started with."""

    def __init__(self, rack: Rack, limits: str, *, agent: str = "", redis: str = "") -> None:
        self._rack = rack
        self._path = rack.new_path(".sock")
        self._agent_lines = agent
        self._redis_lines = redis
        self.config = rack.write_config(limits, path=self._path, agent=agent, redis=redis)
        self.agent = rack.start_command(["--config", str(self.config)], self._path)
        self.agent.wait_for_redis()

    def write(self, limits: str, *, agent: str | None = None, redis: str | None = None) -> None:
        """Puts another file in the place of the first."""
        agent = self._agent_lines if agent is None else agent
        redis = self._redis_lines if redis is None else redis
        new = self._rack.write_config(limits, path=self._path, agent=agent, redis=redis)
        os.replace(new, self.config)

    def reload(self) -> str:
        return self.agent.admin("reload")

    def load(self, limits: str, *, agent: str | None = None, redis: str | None = None) -> str:
        self.write(limits, agent=agent, redis=redis)
        answer = self.reload()
        assert answer.startswith("reloaded: "), answer
        return answer

    def generation(self) -> int:
        return int(self.agent.ask("info")["generation"])


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def redis_lines(store: str, shared_redis: RedisServer) -> str:
    """Of an agent on that store, which then holds nothing."""
    if store == "memory":
        return ""
    shared_redis.call("FLUSHALL")
    return shared_redis.config()


def by_command(site: Site) -> None:
    assert site.reload().startswith("reloaded: ")


def by_signal(site: Site) -> None:
    before = site.generation()
    site.agent.signal(signal.SIGHUP)
    wait_until(lambda: site.generation() > before, "it has loaded the file")


WAYS: dict[str, Callable[[Site], None]] = {"command": by_command, "signal": by_signal}

# What changes


@pytest.mark.parametrize("way", WAYS)
def test_a_changed_limit_keeps_what_was_used(rack: Rack, redis_lines: str, way: str) -> None:
    site = Site(rack, API, redis=redis_lines)
    site.agent.allow("api", "k", 8)
    site.write(limit_table("api", 'rate = "7/day"', "burst = 20"))
    WAYS[way](site)
    raised = site.agent.allow("api", "k", 2)
    assert raised[:3] == (True, 20, 10)
    site.write(limit_table("api", 'rate = "5/day"'))
    WAYS[way](site)
    lowered = site.agent.allow("api", "k")
    assert (lowered.allowed, lowered.limit, lowered.remaining, lowered.verdict) == (False, 5, 0, "limited")
    assert lowered.retry_after_us > 5 * 86_400_000_000 / 5, "what is over the new limit has to come back first"
    assert site.agent.allow("api", "fresh")[:3] == (True, 5, 4)
    assert site.generation() == 3
    assert site.agent.ask("info")["reload_error"] == ""


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window", "sliding_log", "counter"])
def test_a_changed_window_keeps_what_was_used(rack: Rack, redis_lines: str, algorithm: str) -> None:
    def window(count: int) -> str:
        return limit_table("api", f'rate = "{count}/100d"', f'algorithm = "{algorithm}"')

    site = Site(rack, window(10), redis=redis_lines)
    site.agent.allow("api", "k", 8)
    site.load(window(20))
    assert site.agent.allow("api", "k", 2)[:3] == (True, 20, 10)
    site.load(window(5))
    assert site.agent.allow("api", "k")[:3] == (False, 5, 0)
    site.load(window(20))
    assert site.agent.allow("api", "k", 4)[:2] == (True, 20)


def test_limits_come_and_go(rack: Rack, redis_lines: str) -> None:
    site = Site(rack, API, redis=redis_lines)
    site.agent.allow("api", "k", 4)
    with pytest.raises(Refused, match="unknown_limit"):
        site.agent.allow("new", "k")
    assert "2 limits" in site.load(API + limit_table("new", 'rate = "3/day"'))
    assert site.agent.allow("new", "k")[:3] == (True, 3, 2)
    assert site.agent.allow("api", "k")[:3] == (True, 10, 5)
    assert set(site.agent.ask("info")["limits"]) == {"api", "new"}
    site.load(limit_table("new", 'rate = "3/day"'))
    with pytest.raises(Refused, match="unknown_limit"):
        site.agent.allow("api", "k")
    assert set(site.agent.ask("info")["limits"]) == {"new"}
    site.load(API)
    assert site.agent.allow("api", "k")[:3] == (True, 10, 4), "its state outlived it"
    site.load("")
    with pytest.raises(Refused, match="unknown_limit"):
        site.agent.allow("api", "k")
    site.load(limit_table("default", 'rate = "6/day"'))
    assert site.agent.allow("api", "k").limit == 6


def test_everything_that_belongs_to_a_limit_changes(rack: Rack, redis_lines: str) -> None:
    site = Site(rack, API, redis=redis_lines)
    site.agent.allow("api", "k", 10)
    site.load(
        limit_table(
            "api",
            'rate = "10/day"',
            "refund = true",
            'overrides = { "free" = { unlimited = true } }',
            'plans = { pro = { rate = "100/day" } }',
        )
    )
    with site.agent.connect() as client:
        assert client.allow("api", "free").limit == 0
        assert client.allow("api", "k", plan="pro")[:3] == (True, 100, 89)
        assert client.refund("api", "k", 3).allowed
        assert client.allow("api", "k", 2)[:3] == (True, 10, 0)
    assert "/day 10 " in site.agent.admin("limits")
    site.load(limit_table("api", 'rate = "10/day"', "shadow = true"))
    with site.agent.connect() as client:
        assert client.allow("api", "k")[:6:5] == (True, "shadow")
        assert client.allow("api", "free").limit == 10
        with pytest.raises(Refused, match="forbidden"):
            client.refund("api", "k")


def test_the_agents_shadow_and_deadline_change(rack: Rack, redis: RedisServer) -> None:
    limits = '[limits.api]\nrate = "2/day"\non_failure = "deny"'
    mine = {"name": "mine", "rate": "2/day"}
    site = Site(rack, limits, agent='deadline = "10s"', redis=redis.config())
    with site.agent.connect() as client:
        for limit in ("api", mine):
            client.allow(limit, "k", 2)
            assert not client.allow(limit, "k").allowed
        site.load(limits, agent='deadline = "10s"\nshadow = true')
        for limit in ("api", mine):
            assert client.allow(limit, "k")[:6:5] == (True, "shadow")
        site.load(limits, agent='deadline = "10s"')
        for limit in ("api", mine):
            assert client.allow(limit, "k")[:6:5] == (False, "limited")
        site.load(limits, agent='deadline = "1us"')
        redis.pause()
        assert client.allow("api", "another")[5:7] == ("unavailable", "fallback"), "long before ten seconds"
        redis.resume()


def test_counters_go_on(rack: Rack) -> None:
    site = Site(rack, API)
    line = 'allowd_decisions_total{limit="api",tier="",verdict="ok",source="local"} '
    for _ in range(3):
        site.agent.allow("api", "k")
    assert line + "3\n" in site.agent.admin("stats prom")
    site.load(limit_table("api", 'rate = "20/day"'))
    site.agent.allow("api", "k")
    assert line + "4\n" in site.agent.admin("stats prom")
    site.load("")
    site.load(API)
    site.agent.allow("api", "k")
    assert line + "5\n" in site.agent.admin("stats prom")


def test_the_hash_follows_the_file(rack: Rack) -> None:
    site = Site(rack, API)
    first = site.agent.ask("info")["config_hash"]
    site.load(limit_table("api", 'rate = "11/day"'))
    assert site.agent.ask("info")["config_hash"] != first
    site.load("# a comment\n" + API)
    assert site.agent.ask("info")["config_hash"] == first
    assert site.generation() == 3


# Faulty files

FAULTS = {
    "an unknown key": ('[limits.api]\nrate = "10/day"\nbrust = 5', 3, "limits.api.brust"),
    "a rate without unit": ('[limits.api]\nrate = "10"', 2, "limits.api.rate"),
    "a burst on a window": (
        '[limits.api]\nrate = "10/day"\nalgorithm = "fixed_window"\nburst = 3',
        4,
        "limits.api.burst",
    ),
    "a tier without rate": ('[limits.api]\ntiers = [ { name = "a" } ]', 2, "limits.api.tiers[0]"),
    "no TOML": ("[limits.api\n", 1, ""),
    "a wrong second limit": (API + '\n[limits.other]\nrate = "1/fortnight"', 0, "limits.other.rate"),
    "a wrong plan": (
        '[limits.api]\nrate = "10/day"\nplans = { pro = { rate = "1/day", algorithm = "fixed_window" } }',
        3,
        "limits.api.plans.pro",
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_file_changes_nothing_and_is_named(rack: Rack, fault: str, way: str) -> None:
    site = Site(rack, API)
    site.agent.allow("api", "k", 4)
    before = site.agent.ask("info")
    limits, line, key = FAULTS[fault]
    site.config.write_text(limits)
    if way == "command":
        answer = site.reload()
        assert answer.startswith("error: bad_request: ")
        reason = answer.removeprefix("error: bad_request: ").strip()
    else:
        site.agent.signal(signal.SIGHUP)
        wait_until(lambda: site.agent.ask("info")["reload_error"], "it says what is wrong")
        reason = site.agent.ask("info")["reload_error"]
    place = re.escape(str(site.config)) + (f":{line}: " if line else r":\d+: ")
    assert re.match(place + re.escape(key), reason), reason
    after = site.agent.ask("info")
    assert after["reload_error"] == reason
    assert reason in site.agent.log()
    for entry in ("generation", "config_hash", "limits"):
        assert after[entry] == before[entry]
    assert site.agent.allow("api", "k")[:3] == (True, 10, 5)
    site.load(API)
    assert site.agent.ask("info")["reload_error"] == ""


def test_a_file_that_is_not_there_or_no_file_changes_nothing(rack: Rack) -> None:
    site = Site(rack, API)
    site.agent.allow("api", "k", 4)
    site.config.unlink()
    assert str(site.config) in site.reload()
    assert site.agent.ask("info")["reload_error"] != ""
    site.config.mkdir()
    assert site.reload().startswith("error: ")
    assert site.agent.allow("api", "k").remaining == 5
    site.config.rmdir()
    site.load(API)
    assert site.generation() == 2
    assert site.agent.allow("api", "k").remaining == 4


def allowctl(agent: Agent, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program("allowctl")), "--admin-socket", str(agent.admin_path), *words],
        capture_output=True,
        text=True,
        timeout=30,
        env=clean_environment(),
    )


def test_allowctl_says_how_it_went(rack: Rack) -> None:
    site = Site(rack, API)
    done = allowctl(site.agent, "reload")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("reloaded: generation 2")
    site.config.write_text('[limits.api]\nrate = "10"')
    done = allowctl(site.agent, "reload")
    assert (done.returncode, done.stdout) == (5, "")
    assert f"{site.config}:2: limits.api.rate: " in done.stderr
    site.agent.stop()
    assert allowctl(site.agent, "reload").returncode == 3


def test_an_agent_without_a_file_says_so(rack: Rack) -> None:
    path = rack.new_path(".sock")
    agent = rack.start_command([], path, {"ALLOWD_SOCKET": str(path)})
    assert "without a config file" in agent.admin("reload")
    assert allowctl(agent, "reload").returncode == 5
    agent.signal(signal.SIGHUP)
    wait_until(lambda: agent.log().count("without a config file") >= 3, "the log says so, too")
    assert agent.ask("info")["generation"] == 1
    assert agent.allow({"name": "mine", "rate": "3/day"}, "k").allowed


# What needs a restart

RESTARTS = {
    "agent.socket_mode": ('socket_mode = "0600"', None),
    "agent.max_connections": ("max_connections = 7", None),
    "agent.max_keys": ("max_keys = 7", None),
    "agent.admin_socket": ('admin_socket = "/tmp/another.admin.sock"', None),
    "redis": ("", 'url = "redis://127.0.0.1:1"'),
}


@pytest.mark.parametrize("key", RESTARTS)
def test_what_needs_a_restart_is_named_and_the_limits_change_all_the_same(rack: Rack, key: str) -> None:
    site = Site(rack, API)
    agent_lines, redis_lines = RESTARTS[key]
    answer = site.load(limit_table("api", 'rate = "12/day"'), agent=agent_lines, redis=redis_lines)
    named = re.findall(r"^(\S+) has changed: that takes effect at a restart$", answer, re.MULTILINE)
    assert named == [key]
    assert f"{key} has changed" in site.agent.log()
    assert site.agent.allow("api", "k")[:7] == (True, 12, 11, 0, 7_200_000_000, "ok", "local")
    assert "restart" not in site.load(API, agent=""), "it is as at the start again"


def test_another_redis_needs_a_restart_and_its_password_is_not_told(rack: Rack, redis: RedisServer) -> None:
    site = Site(rack, API, redis=redis.config())
    other = 'url = "redis://:s3cret@127.0.0.1:1"\nprefix = "other"\nreconnect_max = "1s"'
    answer = site.load(API, redis=other)
    named = re.findall(r"^(\S+) has changed", answer, re.MULTILINE)
    assert named == ["redis.url", "redis.prefix", "redis.reconnect_max"]
    assert "s3cret" not in answer + site.agent.log()
    assert site.agent.allow("api", "k").source == "store"
    assert redis.only_key().startswith(b"allowd:")
    assert "redis has changed" in site.load(API, redis="")
    assert site.agent.allow("api", "k").source == "store"


def test_only_limits_need_no_restart(rack: Rack) -> None:
    site = Site(rack, API)
    assert site.load(limit_table("other", 'rate = "1/day"')).count("\n") == 1


# Queries in flight


@pytest.mark.parametrize("algorithm", ["token_bucket", "fixed_window", "sliding_log", "counter"])
@pytest.mark.parametrize("change", ["smaller", "gone", "another algorithm"])
def test_a_query_in_flight_finishes_under_the_definition_it_began_with(
    rack: Rack, redis: RedisServer, algorithm: str, change: str
) -> None:
    kind = f'algorithm = "{algorithm}"'
    site = Site(rack, limit_table("api", 'rate = "10/day"', kind), redis=redis.config())
    other_kind = "token_bucket" if algorithm == "counter" else "counter"
    after = {
        "smaller": limit_table("api", 'rate = "2/day"', kind),
        "gone": "",
        "another algorithm": limit_table("api", 'rate = "2/day"', f'algorithm = "{other_kind}"'),
    }[change]
    with site.agent.connect() as client:
        client.allow("api", "k", 3)
        redis.pause()
        try:
            client.post("allow", "api", "k", 4)
            client.post("peek", "api", "k", 1)
            wait_until(lambda: site.agent.metric("queries_open") == 2, "both wait for Redis")
            site.load(after)
            wait_until(lambda: site.generation() == 2, "it is another configuration")
        finally:
            redis.resume()
        first, second = (Decision(*client.receive().result) for _ in range(2))
        if first.source == second.source == "store":
            assert first[:3] == (True, 10, 3)
            assert second[:3] == (True, 10, 3)
        else:  # Redis stood still for so long that it counted as down
            assert first.limit == second.limit == 10
    assert site.agent.metric("queries_open") == 0


def test_a_query_in_flight_that_expires_is_answered_by_the_policy_it_began_with(
    rack: Rack, redis: RedisServer
) -> None:
    before = '[limits.api]\nrate = "10/day"\non_failure = "deny"\ndeadline = "700ms"'
    site = Site(rack, before, redis=redis.config())
    with site.agent.connect() as client:
        client.allow("api", "k")
        redis.pause()
        try:
            client.post("allow", "api", "k")
            client.post("allow", {"name": "mine", "rate": "8/day"}, "k", 1, {"deadline_us": 700_000})
            site.load('[limits.api]\nrate = "3/day"\non_failure = "allow"\ndeadline = "10s"')
            replies = [Decision(*client.receive().result) for _ in range(2)]
        finally:
            redis.resume()
    by_limit = {decision.limit: decision for decision in replies}
    assert (by_limit[10].allowed, by_limit[10].verdict, by_limit[10].source) == (False, "unavailable", "fallback")
    assert (by_limit[8].allowed, by_limit[8].source) == (True, "fallback")


# Many reloads


def test_reloads_that_come_together_are_all_answered(rack: Rack) -> None:
    site = Site(rack, API)
    admins = [AdminClient(site.agent.admin_path) for _ in range(50)]
    for admin in admins:
        admin.send(b"reload\n")
    site.agent.signal(signal.SIGHUP)
    for admin in admins:
        assert admin.receive().startswith("reloaded: generation ")
        assert admin.ask("ping") == "pong\n"
        admin.socket.close()
    assert 2 <= site.generation() <= 52


def test_a_reload_sees_what_was_written_before_it_was_asked_for(rack: Rack) -> None:
    site = Site(rack, API)
    with AdminClient(site.agent.admin_path) as one, AdminClient(site.agent.admin_path) as other:
        for number in range(100):
            one.send(b"reload\n")  # on its way while the next file is written
            site.write(limit_table("api", f'rate = "{20 + number}/day"'))
            assert other.ask("reload").startswith("reloaded: ")
            assert site.agent.peek("api", "k").limit == 20 + number
            assert one.receive().startswith("reloaded: ")


def test_commands_behind_a_reload_are_answered_in_order(rack: Rack) -> None:
    site = Site(rack, API)
    with AdminClient(site.agent.admin_path) as admin:
        admin.send(b"reload\nping\nreload\nping\n")
        answers = [admin.receive() for _ in range(4)]
    assert [answer.split(":")[0].strip() for answer in answers] == ["reloaded", "pong", "reloaded", "pong"]


def test_who_asks_and_leaves_harms_nobody(rack: Rack) -> None:
    site = Site(rack, API)
    for _ in range(50):
        with AdminClient(site.agent.admin_path) as admin:
            admin.send(b"reload\nreload\n")
    assert site.reload().startswith("reloaded: ")
    assert site.agent.allow("api", "k").allowed


@pytest.mark.parametrize("number", range(3))
def test_an_end_amid_reloads_is_a_clean_one(rack: Rack, number: int) -> None:
    site = Site(rack, API)
    admins = [AdminClient(site.agent.admin_path) for _ in range(10)]
    for admin in admins:
        admin.send(b"reload\n" * (1 + number))
    site.agent.signal(signal.SIGHUP)
    site.agent.stop()
    for admin in admins:
        admin.socket.close()


RELOADS = 1000
VALID = [
    API + limit_table("other", 'rate = "1/day"'),
    limit_table("api", 'rate = "1000/s"', "burst = 50", "refund = true")
    + "".join(limit_table(f"number{number}", 'rate = "1/day"') for number in range(200)),
    limit_table("api", 'tiers = [ { name = "a", rate = "70/day" }, { name = "b", rate = "900/week" } ]'),
    limit_table("api", 'rate = "30/day"', 'algorithm = "sliding_log"'),
]
CAPACITIES = {10, 50, 70, 30}


def test_reloads_under_load_lose_no_query_and_no_memory(rack: Rack, store: str, redis_lines: str) -> None:
    site = Site(rack, VALID[0], redis=redis_lines)
    resident: list[int] = []
    with Load(site.agent, "api", [f"k{number}" for number in range(20)]) as load:
        with AdminClient(site.agent.admin_path) as admin:
            for number in range(RELOADS):
                if number % 2:
                    site.write(VALID[number // 2 % len(VALID)])
                    assert admin.ask("reload").startswith("reloaded: ")
                else:
                    site.config.write_text(f'[limits.api]\nrate = "{number}"')
                    assert admin.ask("reload").startswith("error: bad_request: ")
                resident.append(site.agent.resident_bytes())
                time.sleep(0.005)
        result = load.finish()
    result.check_times(deadline=10.0)
    assert {sample.decision.limit for sample in result.samples} <= CAPACITIES
    assert len({sample.decision.limit for sample in result.samples}) > 1, "queries came between the reloads"
    # What the pre-filter knows to be refused is not asked.
    asked = [sample for sample in result.samples if sample.decision.allowed]
    assert {sample.decision.source for sample in asked} == {"local" if store == "memory" else "store"}
    assert "fallback" not in {sample.decision.source for sample in result.samples}
    assert site.generation() == 1 + RELOADS // 2
    if not is_sanitized():
        assert resident[-1] - max(resident[: RELOADS // 3]) < 4 * MIB
