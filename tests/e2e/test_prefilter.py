# SPDX-License-Identifier: MIT
"""What the agent decides without Redis, and that Redis would have said the same: refusals on this host, questions that
many queries share, permits taken ahead."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import pytest

from daemon import ASK_ALWAYS, Agent, Rack
from load import Load
from processes import wait_until
from redis_server import RedisServer
from rpc import Client, Decision, request

MakeRedis = Callable[..., RedisServer]

PATIENT = 'deadline = "10s"\non_failure = "deny"\n'
IN_HASTE = {"deadline_us": 100_000}
HASTY = 'deadline = "200ms"\non_failure = "deny"\n'
CAPACITY = 10
# All hold 10 and give nothing back while a test runs.
TIERS = (
    'tiers = [ { name = "day", rate = "10/day" }, { name = "week", rate = "90/week", algorithm = "fixed_window" },'
    ' { name = "month", rate = "900/30d", algorithm = "sliding_window" } ]'
)
KINDS = {
    "token_bucket": 'rate = "10/day"',
    "fixed_window": 'rate = "10/day"\nalgorithm = "fixed_window"',
    "clock_window": 'rate = "10/100d"\nalgorithm = "fixed_window"\nalign = "clock"',
    "sliding_window": 'rate = "10/100d"\nalgorithm = "sliding_window"',
    "sliding_log": 'rate = "10/day"\nalgorithm = "sliding_log"',
    "tiers": TIERS,
    "counter": 'rate = "10/day"\nalgorithm = "counter"',
}
# Of a counter a refused hit stays charged, and nothing can be given back.
SCRIPTED = [name for name in KINDS if name != "counter"]
# Something is back within half a second.
QUICK = {
    "quick_token_bucket": 'rate = "10/3s"',
    "quick_fixed_window": 'rate = "10/500ms"\nalgorithm = "fixed_window"',
    "quick_clock_window": 'rate = "10/500ms"\nalgorithm = "fixed_window"\nalign = "clock"',
    "quick_sliding_window": 'rate = "10/300ms"\nalgorithm = "sliding_window"',
    "quick_sliding_log": 'rate = "10/500ms"\nalgorithm = "sliding_log"',
    "quick_tiers": 'tiers = [ { name = "short", rate = "10/3s" }, { name = "long", rate = "90/week" } ]',
    "quick_counter": 'rate = "10/500ms"\nalgorithm = "counter"',
}
# Enough for any test, and no permit comes back meanwhile.
PLENTY, SCARCE = 100_000, 3000
LEASED = {
    "leased": f'rate = "1/h"\nburst = {PLENTY}\nlease = "5%"',
    "scarce": f'rate = "1/h"\nburst = {SCARCE}\nlease = "5%"',
}
FOUGHT_OVER = {"fought_over": 'rate = "50/s"\nburst = 10'}


def limits(kinds: dict[str, str], common: str = PATIENT) -> str:
    return "\n".join(
        f"[limits.{name}]\n{text}\n{common}{'' if 'counter' in name else 'refund = true'}"
        for name, text in kinds.items()
    )


ALL = limits(KINDS | QUICK | LEASED | FOUGHT_OVER)


class Site(NamedTuple):
    """Agents on one Redis: two that keep what they know, and one that asks always."""

    redis: RedisServer
    agent: Agent
    peer: Agent
    asking: Agent


def start(rack: Rack, redis: RedisServer, text: str = ALL, *, more: str = "") -> Agent:
    agent = rack.start(text, redis=redis.config() + more)
    agent.wait_for_redis()
    return agent


@pytest.fixture(scope="module")
def site(shared_rack: Rack, shared_redis: RedisServer) -> Site:
    """Shared by the tests of this module, each of which has keys of its own."""
    agent, peer = (start(shared_rack, shared_redis) for _ in range(2))
    return Site(shared_redis, agent, peer, start(shared_rack, shared_redis, more=ASK_ALWAYS))


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def pipelined(client: Client, limit: str, key: str, costs: Iterable[int]) -> list[Decision]:
    """Asks in one write; the answers in the order of the questions."""
    asked = list(costs)
    client.send(b"".join(request("allow", limit, key, cost, msgid=msgid) for msgid, cost in enumerate(asked)))
    replies = client.receive_many(len(asked))
    return [Decision(*replies[msgid].result) for msgid in range(len(asked))]


def drain(agent: Agent, limit: str, key: str, permits: int = CAPACITY) -> None:
    with agent.connect() as client:
        for left in range(CAPACITY - 1, CAPACITY - 1 - permits, -1):
            decision = client.allow(limit, key)
            assert (decision.allowed, decision.remaining, decision.source) == (True, left, "store"), limit


def refused_here(agent: Agent, limit: str, key: str, cost: int | None = None) -> Decision:
    """A refusal that this host made on its own."""
    decision = agent.allow(limit, key, cost)
    assert (decision.allowed, decision.verdict, decision.source) == (False, "limited", "local"), (limit, decision)
    return decision


def scripts(redis: RedisServer) -> int:
    """How many decisions' scripts, and transactions of counters, Redis has run."""
    calls = redis.calls()
    return calls["evalsha"] + calls["exec"]


def questions(*agents: Agent) -> float:
    return sum(agent.metric("prefilter_questions_total") for agent in agents)


def uncertainty_us(*agents: Agent) -> float:
    return sum(agent.metric("redis_clock_uncertainty_seconds") * 1e6 for agent in agents)


# Refusals on this host


def test_a_flood_on_empty_keys_asks_redis_about_once_a_second(site: Site, key: str) -> None:
    for limit in KINDS:
        drain(site.agent, limit, key)
    before, run = questions(site.agent), scripts(site.redis)
    sources: Counter[str] = Counter()
    began = time.monotonic()
    with site.agent.connect() as client:
        while time.monotonic() < began + 2.2:
            for limit in KINDS:
                for decision in pipelined(client, limit, key, [1] * 20):
                    assert (decision.allowed, decision.verdict) == (False, "limited"), limit
                    assert 0 < decision.retry_after_us
                    sources[decision.source] += 1
    seconds = time.monotonic() - began
    asked = questions(site.agent) - before
    assert len(KINDS) <= asked <= len(KINDS) * (seconds + 1)
    assert scripts(site.redis) - run <= asked, "one each, however many queries share it"
    assert sources["local"] > 10 * sources["store"] and not sources["fallback"], sources


@pytest.mark.parametrize("limit", KINDS)
def test_a_retry_is_never_longer_than_redis_own(site: Site, key: str, limit: str) -> None:
    drain(site.peer, limit, key)
    site.agent.peek(limit, key)  # it learns of what another took
    with site.agent.connect() as here, site.asking.connect() as there:
        for _ in range(5):
            before = there.allow(limit, key)
            asked = time.monotonic()
            ours = here.allow(limit, key)
            after = there.allow(limit, key)
            assert (before.source, ours.source, after.source) == ("store", "local", "store")
            spread = 2 * uncertainty_us(site.agent, site.asking)
            since = (time.monotonic() - asked) * 1e6
            assert ours.retry_after_us <= before.retry_after_us + spread
            # Nor much shorter: a counter's is rounded to a millisecond.
            assert ours.retry_after_us >= after.retry_after_us - spread - 2000 - since
            assert ours[:3] == before[:3] and ours[7:9] == before[7:9]


@pytest.mark.parametrize("limit", SCRIPTED)
def test_a_refused_cost_does_not_refuse_smaller_ones(site: Site, key: str, limit: str) -> None:
    drain(site.agent, limit, key, 7)
    refused_here(site.agent, limit, key, 5)
    refused_here(site.agent, limit, key, 4)
    assert site.agent.allow(limit, key, 1)[:7:6] == (True, "store")
    refused_here(site.agent, limit, key, 3)
    assert site.agent.allow(limit, key, 2)[:3] == (True, CAPACITY, 0)
    refused_here(site.agent, limit, key, 1)


def test_who_waits_as_long_as_told_passes(site: Site, key: str) -> None:
    """All limits side by side, since each takes its time."""
    with site.agent.connect() as client:
        for limit in QUICK:
            while (refused := client.allow(limit, key)).allowed or refused.source != "local":
                pass
            for _ in range(3):  # clocks differ: a wait may turn out a little too short, never too long
                assert 0 < refused.retry_after_us <= 500_000, limit
                time.sleep(refused.retry_after_us / 1e6)
                if (refused := client.allow(limit, key)).allowed:
                    break
            assert refused.allowed and refused.source == "store", limit


def refund(site: Site, limit: str, key: str) -> None:
    with site.peer.connect() as client:
        client.refund(limit, key, 3)


def reset(site: Site, limit: str, key: str) -> None:
    assert not site.peer.admin(f"reset {limit} {key}").startswith("error")


@pytest.mark.parametrize(("give", "kinds"), [(refund, SCRIPTED), (reset, list(KINDS))], ids=["refund", "reset"])
def test_what_another_agent_gives_back_is_noticed_within_trust(
    site: Site, key: str, give: Callable[[Site, str, str], None], kinds: list[str]
) -> None:
    for limit in kinds:
        drain(site.agent, limit, key)
        refused_here(site.agent, limit, key)
        give(site, limit, key)
    before = questions(site.agent)
    for limit in kinds:
        wait_until(lambda limit=limit: site.agent.allow(limit, key).allowed, f"{limit} is noticed", within=5)
    # Refusals here do not prolong it: the first question about each key has found what was given back.
    assert questions(site.agent) - before == len(kinds)


@pytest.mark.parametrize("limit", KINDS)
def test_what_this_agent_gives_back_itself_is_known_at_once(site: Site, key: str, limit: str) -> None:
    drain(site.agent, limit, key)
    refused_here(site.agent, limit, key)
    if limit != "counter":
        with site.agent.connect() as client:
            client.refund(limit, key, 1)
            assert client.allow(limit, key).allowed
        refused_here(site.agent, limit, key)
    assert not site.agent.admin(f"reset {limit} {key}").startswith("error")
    assert site.agent.allow(limit, key)[:3] == (True, CAPACITY, CAPACITY - 1)


def test_a_raised_limit_is_noticed_at_once(rack: Rack, shared_redis: RedisServer) -> None:
    path = rack.new_path(".sock")
    config = rack.write_config(limits(KINDS), path=path, redis=shared_redis.config())
    agent = rack.start_command(["--config", str(config)], path)
    agent.wait_for_redis()
    for limit in KINDS:
        drain(agent, limit, "raised")
        refused_here(agent, limit, "raised")
    raised = {name: text.replace('"10/', '"20/') for name, text in KINDS.items()}
    os.replace(rack.write_config(limits(raised), path=path, redis=shared_redis.config()), config)
    assert agent.admin("reload").startswith("reloaded: ")
    for limit in KINDS:
        decision = agent.allow(limit, "raised")
        assert (decision.allowed, decision.limit, decision.source) == (True, 20, "store"), limit


# Questions that are shared


@pytest.mark.parametrize("costs", [[1] * 15, [3, 3, 1, 5, 1, 1, 2, 1, 1]], ids=["equal", "mixed"])
def test_queries_of_one_write_share_a_question(rack: Rack, site: Site, key: str, costs: list[int]) -> None:
    memory = rack.start(ALL)
    kinds = list(KINDS) if len(set(costs)) == 1 else SCRIPTED
    for limit in kinds:
        before = questions(site.agent)
        went = site.agent.metric("prefilter_queries_asked_total")
        with site.agent.connect() as client, memory.connect() as other:
            decisions = pipelined(client, limit, key, costs)
            expected = pipelined(other, limit, key, costs)
        assert questions(site.agent) - before == 1, limit
        shared = site.agent.metric("prefilter_queries_asked_total") - went
        assert shared == sum(decision.source == "store" for decision in decisions) >= CAPACITY / max(costs)
        left = CAPACITY
        for cost, ours, theirs in zip(costs, decisions, expected, strict=True):
            assert (ours.allowed, ours.limit, ours.verdict) == (theirs.allowed, theirs.limit, theirs.verdict), limit
            if ours.allowed:
                left -= cost
                assert ours.remaining == theirs.remaining == left


def test_two_agents_admit_exactly_the_capacity(site: Site, key: str) -> None:
    keys = [(limit, f"{key}-{number}") for limit in KINDS for number in range(4)]
    clients = [agent.connect() for agent in (site.agent, site.peer) for _ in range(3)]
    for client in clients:
        client.send(b"".join(request("allow", *keys[at % len(keys)], msgid=at) for at in range(6 * len(keys))))
    granted: Counter[tuple[str, str]] = Counter()
    for client in clients:
        for msgid, reply in client.receive_many(6 * len(keys)).items():
            granted[keys[msgid % len(keys)]] += reply.result[0]
        client.close()
    assert granted == dict.fromkeys(keys, CAPACITY)


def test_agents_that_fight_over_a_key_share_its_rate_and_space_their_questions(site: Site, key: str) -> None:
    both = (site.agent, site.peer)
    asked, held = questions(*both), sum(agent.metric("prefilter_held_total") for agent in both)
    granted = 0
    with site.agent.connect() as one, site.peer.connect() as other:
        began = time.monotonic()
        while time.monotonic() < began + 1:
            granted += sum(client.allow("fought_over", key).allowed for client in (one, other))
        seconds = time.monotonic() - began
    assert 15 < granted <= 10 + 50 * seconds
    assert questions(*both) - asked <= 4 * granted, "some are in vain, but not one for each query"
    assert sum(agent.metric("prefilter_held_total") for agent in both) > held


# When Redis does not answer


def test_a_late_grant_is_given_back_once(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis, limits({name: KINDS[name] for name in SCRIPTED}))
    for limit in SCRIPTED:
        drain(agent, limit, "k", 6)
        late = agent.metric("redis_given_back_total")
        redis.pause()
        with agent.connect() as client:
            for count in (2, 1):  # the later one waits behind those that are asked, and never is
                queries = [request("allow", limit, "k", 1, IN_HASTE, msgid=msgid) for msgid in range(count)]
                client.send(b"".join(queries))
                for reply in client.receive_many(count).values():
                    assert tuple(reply.result[5:7]) == ("unavailable", "fallback"), limit
        redis.resume()
        wait_until(lambda: agent.metric("redis_questions_open") == 0, "nothing is open")
        assert agent.metric("redis_given_back_total") > late, limit
        assert agent.peek(limit, "k").remaining == 4, limit
    for limit in SCRIPTED:
        assert agent.allow(limit, "k")[:3] == (True, CAPACITY, 3), limit


def test_keys_are_asked_anew_after_redis_came_back_empty(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis, limits(KINDS))
    for limit in KINDS:
        drain(agent, limit, "k")
        refused_here(agent, limit, "k")
    redis.pause()
    with agent.connect() as client:
        # Questions about these are under way when the connection breaks.
        msgids = [client.post("allow", limit, "other", 1, IN_HASTE) for limit in KINDS]
        msgids += [client.post("allow", limit, "k", 1, IN_HASTE) for limit in KINDS]
        connects = agent.metric("redis_connects_total")
        redis.kill()
        redis.start()
        replies = client.receive_many(len(msgids))
        assert {replies[msgid].result[6] for msgid in msgids[: len(KINDS)]} == {"fallback"}
        assert not any(replies[msgid].result[0] for msgid in msgids)
    wait_until(lambda: agent.metric("redis_connects_total") > connects, "it has connected anew")
    for limit in KINDS:
        for key in ("k", "other"):
            decision = agent.allow(limit, key)
            assert (decision.allowed, decision.remaining, decision.source) == (True, CAPACITY - 1, "store"), limit


def test_a_pause_under_a_flood_on_one_key_leaves_nobody_waiting(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis, limits({"plenty": f'rate = "1/h"\nburst = {PLENTY}'}, HASTY))
    with Load(agent, "plenty", ["hot"]) as load:
        time.sleep(0.3)
        redis.pause()
        time.sleep(2.0)
        redis.resume()
        agent.wait_for_redis()
        time.sleep(0.3)
        recovered = time.monotonic()
        time.sleep(0.7)
        result = load.finish()
    result.check_times(0.2)
    sources = result.sources_since(recovered)
    assert sources["store"] > 50, sources
    assert sources["fallback"] <= sources["store"] / 20, sources
    wait_until(lambda: agent.metric("redis_questions_open") == 0, "nothing is open")
    assert agent.metric("prefilter_queries_waiting") == 0


# Permits taken ahead


def ask_often(agent: Agent, key: str, queries: int, limit: str = "leased") -> int:
    """Asks about one key, twenty times per write; how many passed."""
    with agent.connect() as client:
        return sum(
            decision.allowed for _ in range(0, queries, 20) for decision in pipelined(client, limit, key, [1] * 20)
        )


def test_a_hot_key_is_leased_and_charged_exactly(site: Site, key: str) -> None:
    run = scripts(site.redis)
    began = time.monotonic()
    assert ask_often(site.agent, key, 20_000) == 20_000
    seconds = time.monotonic() - began
    assert scripts(site.redis) - run < 60 + 40 * seconds, "a script for each part of a lease"
    assert site.agent.metric("prefilter_leased_grants_total") > 15_000
    # What was taken ahead is not there for others, until it has lived out.
    assert site.peer.peek("leased", key).remaining <= PLENTY - 20_000
    wait_until(lambda: site.agent.metric("prefilter_leases") == 0, "the lease is over")
    wait_until(lambda: site.peer.peek("leased", key).remaining == PLENTY - 20_000, "the rest is given back")
    taken, given = (site.agent.metric(f"prefilter_{name}_total") for name in ("leased", "leased_given_back"))
    assert taken - given == site.agent.metric("prefilter_leased_grants_total")


def test_an_agent_that_stops_gives_its_lease_back(rack: Rack, site: Site, key: str) -> None:
    agent = start(rack, site.redis)
    assert ask_often(agent, key, 2000) == 2000
    assert agent.metric("prefilter_leases") == 1
    assert site.peer.peek("leased", key).remaining < PLENTY - 2000, "some is taken ahead"
    agent.stop()
    assert site.peer.peek("leased", key).remaining == PLENTY - 2000


def test_a_reset_ends_a_lease(site: Site, key: str) -> None:
    wait_until(lambda: site.agent.metric("prefilter_leases") == 0, "others' are over")
    ask_often(site.agent, key, 2000)
    assert site.agent.metric("prefilter_leases") == 1
    assert not site.agent.admin(f"reset leased {key}").startswith("error")
    assert site.agent.metric("prefilter_leases") == 0
    assert site.peer.allow("leased", key, 5000).remaining == PLENTY - 5000
    time.sleep(1.2)  # longer than a lease lives: nothing of it comes back into the new budget
    assert site.peer.peek("leased", key).remaining == PLENTY - 5000


def test_agents_with_leases_admit_the_capacity_and_no_more(site: Site, key: str) -> None:
    both = (site.agent, site.peer)
    granted = sum(ask_often(agent, key, 200, "scarce") for _ in range(10) for agent in both)
    assert granted <= SCARCE
    assert all([agent.metric("prefilter_leases") > 0 for agent in both])
    wait_until(lambda: not any([agent.metric("prefilter_leases") for agent in both]), "their leases are over")
    granted += ask_often(site.asking, key, SCARCE + 20 - granted, "scarce")
    assert granted == SCARCE
