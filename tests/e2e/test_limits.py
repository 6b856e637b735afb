# SPDX-License-Identifier: MIT
"""What a limit may be besides a rate: algorithms, tiers, overrides, plans, shadow, scope, default, refunds, force.

Most of it must be the same on memory and on Redis, and is asked of both. Limits refill slowly, so that numbers are
exact however slow the machine is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from daemon import ASK_ALWAYS, Agent, Rack
from processes import wait_until
from redis_server import RedisServer
from rpc import Client, Decision, Refused

_CASES = Path(__file__).resolve().parents[1] / "cases" / "limits.jsonl"

DAY = 86_400_000_000  # µs
SLACK = 60_000_000  # µs that a test may take between two queries

ALGORITHMS = ["token_bucket", "fixed_window", "sliding_window", "sliding_log", "counter"]
TIERABLE = ["token_bucket", "fixed_window", "sliding_window"]
PATIENT = 'deadline = "10s"\non_failure = "deny"\n'

LIMITS = (
    f"""
[limits.overridden]
rate = "10/day"
{PATIENT}
[limits.overridden.overrides]
"tenant-42" = {{ rate = "500/day", burst = 1000 }}
"tenant-*" = {{ rate = "20/day" }}
"tenant-big-*" = {{ rate = "30/day" }}
"internal-*" = {{ unlimited = true }}
"internal-bad" = {{ deny = true }}
"windowed" = {{ rate = "3/day", algorithm = "fixed_window" }}
"tiered" = {{ tiers = [ {{ name = "day", rate = "7/day" }}, {{ name = "week", rate = "9/week" }} ] }}
"" = {{ rate = "4/day" }}

[limits.planned]
rate = "10/day"
{PATIENT}
plans = {{ pro = {{ rate = "100/day" }}, small = {{ rate = "10/day", burst = 5 }} }}
overrides = {{ "special" = {{ rate = "3/day" }} }}

[limits.tiered]
{PATIENT}
refund = true
tiers = [ {{ name = "day", rate = "5/day" }}, {{ name = "week", rate = "8/week", algorithm = "fixed_window" }},
          {{ name = "month", rate = "9/30d", algorithm = "sliding_window" }} ]

[limits.tiered.plans.pro]
tiers = [ {{ name = "day", rate = "50/day" }}, {{ name = "week", rate = "80/week", algorithm = "fixed_window" }},
          {{ name = "month", rate = "90/30d", algorithm = "sliding_window" }} ]

[limits.watched]
rate = "3/day"
shadow = true
{PATIENT}
overrides = {{ "barred" = {{ deny = true }}, "enforced" = {{ rate = "2/day", shadow = false }} }}

[limits.halfwatched]
{PATIENT}
tiers = [ {{ name = "trial", rate = "2/day", shadow = true }}, {{ name = "real", rate = "4/day" }} ]
"""
    + "".join(
        f"""
[limits.{algorithm}]
rate = "10/day"
algorithm = "{algorithm}"
{PATIENT}{"" if algorithm == "counter" else "refund = true"}
"""
        for algorithm in ALGORITHMS
    )
)


def started(rack: Rack, limits: str, store: str, redis: RedisServer, **tables: str) -> Agent:
    agent = rack.start(limits, redis=redis.config() + ASK_ALWAYS if store == "redis" else "", **tables)
    agent.wait_for_redis()
    return agent


@pytest.fixture(scope="module", params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def agent(store: str, shared_rack: Rack, shared_redis: RedisServer) -> Agent:
    return started(shared_rack, LIMITS, store, shared_redis)


@pytest.fixture
def source(store: str) -> str:
    """Who decides what is counted."""
    return "local" if store == "memory" else "store"


@pytest.fixture
def client(agent: Agent) -> Iterator[Client]:
    with agent.connect() as connected:
        yield connected


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A key of this test's own."""
    return str(request.node.name)


def is_just_below(value: int, exact: int) -> bool:
    """True of a wait that was `exact` a moment ago."""
    return exact - SLACK <= value <= exact


def inline(name: str, rate: str = "10/day", **more: Any) -> dict[str, Any]:
    return {"name": name, "rate": rate, **more}


def count_of(agent: Agent, limit: str, tier: str, verdict: str, source: str) -> int:
    """What `stats prom` counted so far."""
    labels = f'{{limit="{limit}",tier="{tier}",verdict="{verdict}",source="{source}"}}'
    for line in agent.admin("stats prom").splitlines():
        if line.startswith(f"allowd_decisions_total{labels} "):
            return int(line.rsplit(" ", 1)[1])
    return 0


def errors_of(client: Client, *params: Any, method: str = "allow") -> str:
    with pytest.raises(Refused) as refused:
        client.ask(method, *params)
    assert client.ask("ping") == "pong", "the connection goes on"
    return refused.value.code


# Overrides

UNLIMITED = (True, 0, 0, 0, 0, "ok", "local", "", 0, 0)
DENIED = (False, 0, 0, -1, 0, "never", "local", "", 0, 0)


@pytest.mark.parametrize(
    ("name", "capacity"),
    [
        ("tenant-42", 1000),
        ("tenant-421", 20),
        ("tenant-4", 20),
        ("tenant-", 20),
        ("tenant-big", 20),
        ("tenant-big-", 30),
        ("tenant-big-one", 30),
        ("tenant", 10),
        ("Tenant-42", 10),
        ("a tenant-42", 10),
        ("windowed", 3),
        ("tiered", 7),
        ("", 4),
    ],
)
def test_the_longest_override_that_matches_decides(
    client: Client, source: str, name: str, capacity: int
) -> None:
    first = client.allow("overridden", name, 2)
    assert (first.allowed, first.limit, first.remaining, first.source) == (True, capacity, capacity - 2, source)
    assert client.allow("overridden", name, capacity - 2).allowed
    assert client.allow("overridden", name).verdict == "limited"


def test_what_is_unlimited_is_not_counted(agent: Agent, client: Client) -> None:
    before = count_of(agent, "overridden", "", "ok", "local")
    for cost in (1, 0, 10**9, 2**64 - 1):
        assert client.allow("overridden", "internal-job", cost) == UNLIMITED
        assert client.peek("overridden", "internal-job", cost) == UNLIMITED
    assert client.allow("overridden", "internal-") == UNLIMITED
    assert client.allow("overridden", "internal-job", 5, force=True) == UNLIMITED
    assert client.allow("overridden", "internal").limit == 10
    assert count_of(agent, "overridden", "", "ok", "local") >= before + 10


def test_what_is_denied_is_never_let_in(agent: Agent, client: Client) -> None:
    before = count_of(agent, "overridden", "", "never", "local")
    for _ in range(3):
        assert client.allow("overridden", "internal-bad", 1) == DENIED
        assert client.peek("overridden", "internal-bad", 1) == DENIED
    assert count_of(agent, "overridden", "", "never", "local") == before + 6


def test_an_override_beats_a_plan(client: Client) -> None:
    assert client.allow("planned", "special", plan="pro")[:3] == (True, 3, 2)
    assert client.allow("planned", "special")[:3] == (True, 3, 1)
    assert client.allow("planned", "special", 2, plan="pro").verdict == "limited"


# Plans


def test_plans_are_other_numbers_over_the_same_bucket(client: Client, key: str) -> None:
    assert client.allow("planned", key, 8, plan="pro")[:3] == (True, 100, 92)
    assert client.allow("planned", key)[:3] == (True, 10, 1)
    assert client.allow("planned", key, 2).verdict == "limited"
    assert client.allow("planned", key, 50, plan="pro")[:3] == (True, 100, 41)
    base = client.allow("planned", key, 0)
    assert base[:3] == (True, 10, 0)
    assert client.allow("planned", key, 1, plan="small")[:3] == (False, 5, 0)


def test_a_plan_may_have_tiers(client: Client, key: str) -> None:
    assert client.allow("tiered", key, 40, plan="pro")[:3] == (True, 50, 10)
    refused = client.allow("tiered", key)
    assert (refused.allowed, refused.remaining) == (False, 0)
    assert client.allow("tiered", key, 10, plan="pro")[:3] == (True, 50, 0)


def test_a_plan_that_the_limit_lacks_is_the_limit_itself_and_counted(
    agent: Agent, client: Client, key: str
) -> None:
    before = agent.metric("unknown_plans_total")
    assert client.allow("planned", key, plan="gold")[:3] == (True, 10, 9)
    assert client.allow("tiered", key, plan="gold").limit == 5
    assert client.allow(inline("no plans"), key, plan="pro").limit == 10
    assert agent.metric("unknown_plans_total") == before + 3
    client.allow("planned", key, plan="pro")
    client.allow("planned", key, plan="")
    assert agent.metric("unknown_plans_total") == before + 3


@pytest.mark.parametrize("plan", [1, True, ["pro"], {}])
def test_a_plan_is_named_by_text(client: Client, plan: Any) -> None:
    assert errors_of(client, "planned", "k", 1, {"plan": plan}) == "bad_request"


# Scope


def test_a_limit_of_this_host_never_reaches_redis(rack: Rack, redis: RedisServer) -> None:
    limits = f'[limits.upload]\nrate = "3/day"\nscope = "host"\nrefund = true\n{PATIENT}'
    first, second = (started(rack, limits, "redis", redis) for _ in range(2))
    for agent in (first, second):
        assert agent.allow("upload", "k", 3)[:7] == (True, 3, 0, 0, DAY, "ok", "local")
        assert agent.allow("upload", "k").verdict == "limited"
        assert agent.peek("upload", "k").source == "local"
    assert redis.keys() == []
    redis.kill()
    wait_until(lambda: first.ask("info")["degraded"], "it has noticed")
    assert first.allow("upload", "k")[5:7] == ("limited", "local"), "it does not depend on Redis"
    assert first.allow("upload", "other")[5:7] == ("ok", "local")
    with first.connect() as client:
        assert client.refund("upload", "k", 2).remaining == 2
        assert client.allow("upload", "k", 2).allowed
    assert first.admin("reset upload k") == "reset\n"
    assert first.allow("upload", "k", 3).allowed


# The default limit


def test_names_that_are_not_configured_share_the_default_limit(
    rack: Rack, store: str, source: str, shared_redis: RedisServer
) -> None:
    limits = f'[limits.default]\nrate = "5/day"\n{PATIENT}\n[limits.api]\nrate = "7/day"\n{PATIENT}'
    agent = started(rack, limits, store, shared_redis)
    with agent.connect() as client:
        assert client.allow("one", "d", 2)[:3] == (True, 5, 3)
        assert client.allow("two", "d", 2)[:3] == (True, 5, 1)
        assert client.allow("default", "d", 1)[:3] == (True, 5, 0)
        assert client.allow("", "d").verdict == "limited"
        assert client.allow("api", "d")[:3] == (True, 7, 6), "a limit of its own"
        assert client.allow("three", "d").verdict == "limited"
        assert client.allow("api", "d")[:3] == (True, 7, 5)
    assert count_of(agent, "default", "", "ok", source) == 3
    assert count_of(agent, "default", "", "limited", source) == 2
    assert count_of(agent, "api", "", "ok", source) == 2
    prometheus = agent.admin("stats prom")
    assert 'limit="one"' not in prometheus and 'limit="three"' not in prometheus
    assert agent.metric("unknown_limits_total") == 0
    assert agent.admin("reset whatever d") == "reset\n"
    assert agent.allow("one", "d", 5).allowed


def test_without_a_default_an_unknown_limit_is_an_error_counted_and_logged_once_per_name(rack: Rack) -> None:
    agent = rack.start('[limits.api]\nrate = "1/day"')
    with agent.connect() as client:
        for _ in range(3):
            for name in ("nobody", "noone", 'qu"ote'):
                assert errors_of(client, name, "k") == "unknown_limit"
                assert errors_of(client, name, "k", method="peek") == "unknown_limit"
    assert agent.metric("unknown_limits_total") == 18
    assert len(re.findall(r"no limit is named \S*nobody", agent.log())) == 1
    assert len(re.findall(r"no limit is named", agent.log())) == 3


# Shadow


def test_a_limit_in_shadow_lets_pass_what_it_would_refuse_and_charges_nothing(
    agent: Agent, client: Client, source: str, key: str
) -> None:
    before = count_of(agent, "watched", "", "shadow", source)
    assert client.allow("watched", key, 2)[:6] == (True, 3, 1, 0, 2 * DAY // 3, "ok")
    for _ in range(3):
        watched = client.allow("watched", key, 2)
        assert (watched.allowed, watched.limit, watched.remaining, watched.verdict) == (True, 3, 1, "shadow")
        assert watched.source == source
        assert is_just_below(watched.retry_after_us, DAY // 3), "its retry too"
        assert is_just_below(watched.reset_after_us, 2 * DAY // 3)
    assert count_of(agent, "watched", "", "shadow", source) == before + 3
    assert client.allow("watched", key, 1)[:6:5] == (True, "ok")
    never = client.allow("watched", key, 4)
    assert (never.allowed, never.limit, never.retry_after_us, never.verdict) == (True, 3, -1, "shadow")


def test_overrides_of_a_limit_in_shadow(client: Client) -> None:
    assert client.allow("watched", "barred")[:6] == (True, 0, 0, -1, 0, "shadow")
    client.allow("watched", "enforced", 2)
    assert client.allow("watched", "enforced")[:6:5] == (False, "limited")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_agent_in_shadow_refuses_nothing(
    rack: Rack, store: str, shared_redis: RedisServer, algorithm: str
) -> None:
    limits = f'[limits.api]\nrate = "3/day"\nalgorithm = "{algorithm}"\n{PATIENT}'
    redis = shared_redis.config(prefix=f"shadow-{algorithm}") if store == "redis" else ""
    agent = rack.start(limits, agent="shadow = true", redis=redis)
    agent.wait_for_redis()
    with agent.connect() as client:
        for limit in ("api", inline("mine", "3/day", algorithm=algorithm)):
            assert client.allow(limit, "k", 3)[:6:5] == (True, "ok")
            for _ in range(3):
                assert client.allow(limit, "k")[:6:5] == (True, "shadow")
            assert client.peek(limit, "k").remaining == 0
            assert client.allow(limit, "k", 4)[3:6:2] == (-1, "shadow")


def test_a_tier_in_shadow_is_not_charged_by_what_it_would_refuse_and_stops_nothing(
    agent: Agent, client: Client, source: str, key: str
) -> None:
    before = count_of(agent, "halfwatched", "trial", "shadow", source)
    assert client.allow("halfwatched", key, 1)[:8:7] == (True, "trial")
    watched = client.allow("halfwatched", key, 2)
    assert (watched.allowed, watched.verdict, watched.tier) == (True, "shadow", "trial")
    assert (watched.limit, watched.remaining) == (2, 1), "its own numbers, and it was not charged"
    assert is_just_below(watched.retry_after_us, DAY // 2)
    refused = client.allow("halfwatched", key, 2)
    assert (refused.allowed, refused.verdict, refused.tier) == (False, "limited", "real"), "a real refusal wins"
    assert client.allow("halfwatched", key, 1)[:6:5] == (True, "ok"), "both had one left"
    assert client.allow("halfwatched", key, 1)[5:8:2] == ("limited", "real")
    assert count_of(agent, "halfwatched", "trial", "shadow", source) == before + 1


DOWN = """
[limits.watched]
rate = "3/day"
shadow = true
on_failure = "deny"

[limits.strict]
rate = "3/day"
on_failure = "deny"
refund = true

[limits.lax]
rate = "3/day"
on_failure = "allow"

[limits.tiered]
on_failure = "deny"
tiers = [ { name = "big", rate = "9/day" }, { name = "small", rate = "4/day" } ]
"""


@pytest.fixture(scope="module")
def agent_alone(shared_rack: Rack) -> Agent:
    """An agent whose Redis is not there."""
    agent = shared_rack.start(DOWN, redis='url = "redis://127.0.0.1:1"')
    wait_until(lambda: agent.ask("info")["degraded"], "it has noticed")
    return agent


def test_with_redis_down_a_limit_in_shadow_lets_pass(agent_alone: Agent) -> None:
    decision = agent_alone.allow("watched", "k")
    assert (decision.allowed, decision.limit, decision.verdict, decision.source) == (True, 3, "shadow", "fallback")
    assert count_of(agent_alone, "watched", "", "shadow", "fallback") >= 1


def test_with_redis_down_what_costs_nothing_passes(agent_alone: Agent) -> None:
    with agent_alone.connect() as client:
        for decision in (client.allow("strict", "k", 0), client.peek("strict", "k", 0)):
            assert (decision.allowed, decision.verdict, decision.source) == (True, "ok", "fallback")
        assert client.allow("strict", "k", 1)[:6:5] == (False, "unavailable")
        assert client.refund("strict", "k", 1)[5:7] == ("ok", "fallback")
        assert client.allow("strict", "k", 9, force=True)[:6:5] == (True, "ok")


@pytest.mark.parametrize("limit", ["strict", "lax"])
def test_with_redis_down_a_cost_above_the_capacity_is_never(agent_alone: Agent, limit: str) -> None:
    assert agent_alone.allow(limit, "k", 4) == (False, 3, 3, -1, 0, "never", "local", "", DAY, 0)


def test_with_redis_down_the_tier_with_the_smallest_capacity_answers(agent_alone: Agent) -> None:
    refused = agent_alone.allow("tiered", "k")
    assert (refused.limit, refused.verdict, refused.tier) == (4, "unavailable", "small")
    assert refused.retry_after_us > 0
    passed = agent_alone.allow("lax", "k", 2)
    assert passed == (True, 3, 3, 0, 0, "ok", "fallback", "", DAY, 0)


# Refunds


def test_a_limit_that_takes_no_refunds_forbids_them(client: Client, key: str) -> None:
    client.allow("planned", key, 3)
    assert errors_of(client, "planned", key, 1, method="refund") == "forbidden"
    assert errors_of(client, "counter", key, 1, method="refund") == "forbidden"
    assert errors_of(client, inline("mine"), key, 1, method="refund") == "forbidden"
    assert errors_of(client, "nobody", key, 1, method="refund") == "unknown_limit"
    assert errors_of(client, "token_bucket", key, -1, method="refund") == "bad_request"
    assert client.peek("planned", key).remaining == 7


@pytest.mark.parametrize("limit", ["token_bucket", "fixed_window", "sliding_window", "sliding_log"])
def test_a_refund_gives_back_and_never_above_full(client: Client, source: str, limit: str, key: str) -> None:
    assert client.refund(limit, key, 4)[:3] == (True, 10, 10), "nothing was taken"
    client.allow(limit, key, 6)
    given = client.refund(limit, key, 4)
    assert (given.allowed, given.limit, given.remaining, given.source) == (True, 10, 8, source)
    assert given.verdict == "ok"
    assert client.refund(limit, key, 0).remaining == 8
    assert client.refund(limit, key, 100).remaining == 10
    assert client.refund(limit, key, 2**64 - 1).remaining == 10
    assert client.allow(limit, key, 11).verdict == "never"
    assert client.allow(limit, key, 10).allowed
    assert not client.allow(limit, key).allowed


def test_a_refund_goes_to_all_tiers(client: Client, key: str) -> None:
    client.allow("tiered", key, 5)
    assert client.refund("tiered", key, 3)[:3] == (True, 5, 3)
    assert client.allow("tiered", key, 3).allowed
    assert client.refund("tiered", key, 100)[:3] == (True, 5, 5)
    assert client.allow("tiered", key, 5).allowed
    assert client.allow("tiered", key)[5:8:2] != ("ok", "")


# Force


@pytest.mark.parametrize("limit", TIERABLE + ["sliding_log"])
def test_force_charges_past_the_limit_and_stops_at_empty(client: Client, source: str, limit: str, key: str) -> None:
    assert client.allow(limit, key, 4, force=True)[:3] == (True, 10, 6)
    assert client.allow(limit, key, 0, force=True).remaining == 6
    forced = client.allow(limit, key, 7, force=True)
    assert (forced.allowed, forced.remaining, forced.verdict, forced.source) == (True, 0, "ok", source)
    assert client.allow(limit, key, 11, force=True)[:6:5] == (True, "ok")
    assert client.allow(limit, key, 2**64 - 1, force=True).remaining == 0
    refused = client.allow(limit, key, 1)
    assert (refused.allowed, refused.verdict) == (False, "limited")
    assert refused.reset_after_us <= 2 * DAY, "no debt beyond empty"
    if limit == "token_bucket":
        assert is_just_below(refused.reset_after_us, DAY)
    assert client.allow(limit, key, 1, force=False).verdict == "limited"


def test_force_on_a_fresh_key_clamps_at_once(client: Client, key: str) -> None:
    for limit in TIERABLE + ["sliding_log"]:
        assert client.allow(limit, key, 10**12, force=True)[:3] == (True, 10, 0)
        assert client.allow(limit, key, 1).verdict == "limited"


def test_force_charges_every_tier(client: Client, key: str) -> None:
    assert client.allow("tiered", key, 7, force=True)[:3] == (True, 5, 0)
    assert client.refund("tiered", key, 5).allowed
    assert client.allow("tiered", key, 5).allowed, "no tier was charged more than it can hold or was asked"


@pytest.mark.parametrize("force", [1, "true", []])
def test_force_is_true_or_false(client: Client, force: Any) -> None:
    assert errors_of(client, "token_bucket", "k", 1, {"force": force}) == "bad_request"


def test_info_lists_the_options(agent: Agent) -> None:
    assert {"plan", "force"} <= set(agent.ask("info")["features"])


# Costs


@pytest.mark.parametrize("limit", [*ALGORITHMS, "tiered"])
def test_a_cost_of_nothing_always_passes_and_charges_nothing(client: Client, limit: str, key: str) -> None:
    full = client.allow(limit, key, 0)
    assert (full.allowed, full.verdict, full.retry_after_us, full.reset_after_us) == (True, "ok", 0, 0)
    assert full.remaining == full.limit
    assert client.allow(limit, key, full.limit).allowed
    for decision in (client.allow(limit, key, 0), client.peek(limit, key, 0)):
        assert (decision.allowed, decision.remaining, decision.retry_after_us) == (True, 0, 0)
        assert decision.verdict == "ok"


@pytest.mark.parametrize("limit", [*ALGORITHMS, "tiered"])
def test_a_cost_above_the_capacity_never_passes_and_does_not_travel(
    agent: Agent, client: Client, store: str, limit: str, key: str
) -> None:
    capacity = client.peek(limit, key).limit
    asked = agent.metric("redis_questions_total") if store == "redis" else 0
    for cost in (capacity + 1, 10**6, 2**64 - 1):
        for decision in (client.allow(limit, key, cost), client.peek(limit, key, cost)):
            assert (decision.allowed, decision.retry_after_us) == (False, -1)
            assert (decision.verdict, decision.source) == ("never", "local")
            assert (decision.limit, decision.remaining, decision.reset_after_us) == (capacity, capacity, 0)
    if store == "redis":
        assert agent.metric("redis_questions_total") == asked
    assert client.peek(limit, key).remaining == capacity


def test_never_shows_what_is_left_where_that_is_known(client: Client, store: str, key: str) -> None:
    for limit in ALGORITHMS:
        client.allow(limit, key, 4)
        never = client.allow(limit, key, 11)
        assert (never.verdict, never.remaining) == ("never", 6 if store == "memory" else 10), limit


def test_a_full_log_is_forgotten_as_a_whole(rack: Rack, store: str, shared_redis: RedisServer) -> None:
    limits = f'[limits.log]\nrate = "1000/day"\nalgorithm = "sliding_log"\nrefund = true\n{PATIENT}'
    agent = rack.start(limits, redis=shared_redis.config(prefix="full") if store == "redis" else "")
    agent.wait_for_redis()
    with agent.connect() as client:
        for left in range(999, -1, -1):
            assert client.allow("log", "k").remaining == left
        refused = client.allow("log", "k")
        assert (refused.allowed, refused.remaining, refused.verdict) == (False, 0, "limited")
        assert is_just_below(refused.retry_after_us, DAY)
        assert client.refund("log", "k", 400).remaining == 400
        assert client.allow("log", "k", 401).verdict == "limited"
        assert client.allow("log", "k", 400).remaining == 0
        assert client.allow("log", "other", 1000).allowed
        assert agent.admin("reset log k") == "reset\n"
        assert client.allow("log", "k", 1000)[:3] == (True, 1000, 0)
        assert not client.allow("log", "k").allowed


# Tiers


def test_a_refusal_names_the_tier_with_the_longest_wait(agent: Agent, client: Client, source: str, key: str) -> None:
    first = client.allow("tiered", key, 2)
    assert (first.remaining, first.tier, first.window_us) == (3, "day", DAY), "the one with least remaining"
    assert client.allow("tiered", key, 3)[:3] == (True, 5, 0)
    refused = client.allow("tiered", key, 1)
    assert (refused.allowed, refused.tier, refused.remaining) == (False, "day", 0)
    assert is_just_below(refused.retry_after_us, DAY // 5)
    refused = client.allow("tiered", key, 4)
    assert (refused.allowed, refused.tier, refused.remaining) == (False, "week", 3), "not the first that refuses"
    assert is_just_below(refused.retry_after_us, 7 * DAY)
    never = client.allow("tiered", key, 6)
    assert (never.verdict, never.tier, never.limit) == ("never", "day", 5)
    assert count_of(agent, "tiered", "day", "limited", source) >= 1


def test_a_refusal_takes_from_no_tier(client: Client, key: str) -> None:
    client.allow("tiered", key, 4)
    for _ in range(20):
        assert client.allow("tiered", key, 2).tier == "day"
    assert client.allow("tiered", key, 1)[:3] == (True, 5, 0), "the week would be full else"


# Keys

ODD_KEYS: list[str | bytes] = [
    "",
    " ",
    "k",
    "K",
    "k ",
    "k\x00",
    "\x00",
    "\x00\x00",
    b"\xff",
    b"\xff\xfe\x00\x01",
    b"\xc3",
    "é",
    "e\u0301",
    "\u200b",
    "😀",
    "{k}",
    "{",
    "}",
    "{}",
    "{}k",
    "k}:{x",
    "a:b",
    "a",
    ":b",
    "1",
    "01",
    "*",
    "k\r\n",
    "k\n",
    "\r\n$5\r\nhello",
    "x" * 1023,
    "x" * 1024,
    "x" * 1023 + "y",
    "é" * 512,
]


@pytest.mark.parametrize("limit", [*ALGORITHMS, "tiered"])
def test_all_keys_are_distinct(client: Client, limit: str) -> None:
    for number, name in enumerate(ODD_KEYS):
        cost = 1 + number % 5
        assert client.allow(limit, name, cost).remaining == client.peek(limit, name, 0).limit - cost, name
    for number, name in enumerate(ODD_KEYS):
        shown = client.peek(limit, name, 0)
        assert shown.remaining == shown.limit - 1 - number % 5, name
    assert errors_of(client, limit, "x" * 1025) == "too_large"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_where_the_table_is_full_nobody_finds_a_full_limit_for_having_been_forgotten(
    rack: Rack, algorithm: str
) -> None:
    limits = f'[limits.api]\nrate = "10/100d"\nalgorithm = "{algorithm}"'
    agent = rack.start(limits, agent="max_keys = 8")
    with agent.connect() as client:
        first = [client.allow("api", f"key {number}", 10) for number in range(40)]
        passed = [decision for decision in first if decision.allowed]
        assert 2 <= len(passed) <= 9, "one for each entry, and one that all others share"
        assert sum(decision.tier == "overflow" for decision in passed) == 1
        again = [client.allow("api", f"key {number}") for number in range(40)]
        assert not any(decision.allowed for decision in again)
    assert agent.metric("overflow_decisions_total") >= 30


# Inline limits


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_inline_limit_may_have_any_algorithm(client: Client, source: str, algorithm: str, key: str) -> None:
    limit = inline("any", "10/day", algorithm=algorithm)
    assert client.allow(limit, key, 4)[:3] == (True, 10, 6)
    assert client.allow(limit, key, 6)[:3] == (True, 10, 0)
    refused = client.allow(limit, key)
    assert (refused.allowed, refused.verdict, refused.source) == (False, "limited", source)
    assert client.allow(algorithm, key).remaining == 9, "configured limits are apart"


def test_inline_limits_of_one_name_and_different_algorithms_do_not_disturb_each_other(client: Client, key: str) -> None:
    for algorithm in ("token_bucket", "sliding_log", "counter"):
        assert client.allow(inline("one name", "10/day", algorithm=algorithm), key, 10).allowed, algorithm
    for algorithm in ("token_bucket", "sliding_log", "counter"):
        assert not client.allow(inline("one name", "10/day", algorithm=algorithm), key).allowed, algorithm


@pytest.mark.parametrize("align", ["first", "clock"])
def test_an_inline_window_may_be_aligned(client: Client, align: str, key: str) -> None:
    limit = inline("aligned", "10/100d", algorithm="fixed_window", align=align)
    first = client.allow(limit, key)
    assert first[:3] == (True, 10, 9)
    assert (first.reset_after_us == 100 * DAY) == (align == "first")


def test_an_inline_limit_may_have_tiers(client: Client, source: str, key: str) -> None:
    tiers = [
        {"name": "day", "rate": "5/day", "burst": 6},
        {"name": "week", "rate": "8/week", "algorithm": "fixed_window", "align": "first"},
    ]
    limit = {"name": "tiered", "tiers": tiers}
    assert client.allow(limit, key, 6)[:8] == (True, 6, 0, 0, 6 * DAY // 5, "ok", source, "day")
    refused = client.allow(limit, key, 3)
    assert (refused.allowed, refused.tier, refused.verdict) == (False, "week", "limited")
    assert is_just_below(refused.retry_after_us, 7 * DAY)


WRONG_INLINE: dict[str, Any] = {
    "a burst on a window": inline("n", algorithm="fixed_window", burst=5),
    "a burst on a sliding window": inline("n", algorithm="sliding_window", burst=5),
    "a burst on a log": inline("n", algorithm="sliding_log", burst=5),
    "a burst on a counter": inline("n", algorithm="counter", burst=5),
    "an unknown algorithm": inline("n", algorithm="leaky_bucket"),
    "a misspelt algorithm": inline("n", algorithm="token-bucket"),
    "a number as algorithm": inline("n", algorithm=1),
    "an align on a bucket": inline("n", align="first"),
    "an unknown align": inline("n", algorithm="fixed_window", align="hour"),
    "a log of more than it holds": inline("n", "1001/day", algorithm="sliding_log"),
    "a rate beside tiers": inline("n", tiers=[{"name": "a", "rate": "1/s"}]),
    "no tiers": {"name": "n", "tiers": []},
    "nine tiers": {"name": "n", "tiers": [{"name": str(i), "rate": "1/s"} for i in range(9)]},
    "a tier without name": {"name": "n", "tiers": [{"rate": "1/s"}]},
    "a tier with an empty name": {"name": "n", "tiers": [{"name": "", "rate": "1/s"}]},
    "a tier without rate": {"name": "n", "tiers": [{"name": "a"}]},
    "two tiers of one name": {"name": "n", "tiers": [{"name": "a", "rate": "1/s"}, {"name": "a", "rate": "2/s"}]},
    "a tier named overflow": {"name": "n", "tiers": [{"name": "overflow", "rate": "1/s"}]},
    "a log as tier": {"name": "n", "tiers": [{"name": "a", "rate": "1/s", "algorithm": "sliding_log"}]},
    "a counter as tier": {"name": "n", "tiers": [{"name": "a", "rate": "1/s", "algorithm": "counter"}]},
    "an unknown key in a tier": {"name": "n", "tiers": [{"name": "a", "rate": "1/s", "brust": 1}]},
    "a map as tiers": {"name": "n", "tiers": {"name": "a", "rate": "1/s"}},
    "text as tiers": {"name": "n", "tiers": "second"},
    "a number as tier": {"name": "n", "tiers": [1]},
    "overrides": inline("n", overrides={}),
    "a refund": inline("n", refund=True),
    "a scope": inline("n", scope="host"),
    "a wrong rate in a tier": {"name": "n", "tiers": [{"name": "a", "rate": "0/s"}]},
    "a long tier name": {"name": "n", "tiers": [{"name": "a" * 129, "rate": "1/s"}]},
}


@pytest.mark.parametrize("name", WRONG_INLINE)
def test_a_wrong_inline_limit_is_a_bad_request(client: Client, name: str) -> None:
    assert errors_of(client, WRONG_INLINE[name], "k") == "bad_request"


# Worked histories

Case = dict[str, Any]


def leading_steps(case: Case) -> list[dict[str, Any]]:
    """The steps at 0, which a test can put at any time; ops that the wire has, under what is configured."""
    steps = []
    for step in case["steps"]:
        if step.get("t") != 0 or step["op"] == "limit":
            break
        steps.append(step)
    return steps


def period_seconds(rate: str) -> tuple[int, float]:
    count, _, per = rate.partition("/")
    found = re.fullmatch(r"(\d*)([a-z]+)", per)
    assert found, rate
    units = {"us": 1e-6, "ms": 1e-3, "s": 1, "second": 1, "m": 60, "min": 60, "h": 3600, "day": 86400, "d": 86400}
    return int(count), int(found[1] or 1) * units[found[2]]


def refills_slowly(limit: dict[str, Any]) -> bool:
    """At most a permit a second."""
    rates = [tier["rate"] for tier in limit.get("tiers", [limit])]
    return all(count <= seconds for count, seconds in map(period_seconds, rates))


def cases() -> list[Case]:
    every = [json.loads(line) for line in _CASES.read_text().splitlines() if line.strip()]
    return [case for case in every if leading_steps(case) and refills_slowly(case["limit"])]


def toml_value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {toml_value(element)}" for name, element in value.items()) + " }"
    return json.dumps(value)


def answer_of(client: Client, step: dict[str, Any]) -> Decision:
    key, cost = step.get("key", ""), step.get("cost", 1)
    if step["op"] == "peek":
        return client.peek("api", key, cost)
    if step["op"] == "refund":
        return client.refund("api", key, cost)
    return client.allow("api", key, cost, **({"force": True} if step["op"] == "force" else {}))


def test_there_are_worked_histories() -> None:
    assert len(cases()) >= 10
    assert {"tb-keys-apart", "tiers-name-the-refuser", "sw-denied-not-counted"} <= {case["id"] for case in cases()}


@pytest.mark.parametrize("case", cases(), ids=lambda case: str(case["id"]))
def test_a_worked_history_begins_alike_over_the_wire(
    rack: Rack, make_redis: Any, store: str, source: str, case: Case
) -> None:
    limits = "[limits.api]\n" + "\n".join(f"{name} = {toml_value(value)}" for name, value in case["limit"].items())
    redis = make_redis()
    if store == "redis":
        redis.start()
    agent = started(rack, f"{limits}\n{PATIENT}refund = true", store, redis)
    with agent.connect() as client:
        for number, step in enumerate(leading_steps(case), 1):
            answer = answer_of(client, step)
            expected = step["expect"]
            where = f"step {number} of {case['id']}: {answer}"
            for field in ("allowed", "limit", "verdict", "tier", "window_us"):
                assert getattr(answer, field) == expected.get(field, getattr(answer, field)), where
            if store == "memory" or expected["verdict"] != "never":
                assert answer.remaining == expected["remaining"], where
                for field in ("retry_after_us", "reset_after_us", "more_after_us"):
                    value, exact = getattr(answer, field), expected[field]
                    assert exact - SLACK <= value <= exact, f"{field} in {where}"
                    assert (value <= 0) == (exact <= 0), f"{field} in {where}"
            assert answer.source == ("local" if expected["verdict"] == "never" else source), where
