# SPDX-License-Identifier: MIT
"""Redis late, stopped, killed, flushed, out of memory, demoted: each query still gets one answer, in time, and no
limit is passed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from daemon import ASK_ALWAYS, Agent, Rack
from load import Load, Result
from processes import wait_until
from redis_server import RedisServer, StoredBucket
from rpc import Client, HungUp, request

DEADLINE = 0.2  # seconds
BURST = 200
# Refills so slowly that no test sees a permit come back.
LIMITS = f"""
[limits.strict]
rate = "1/10d"
burst = {BURST}
on_failure = "deny"

[limits.lax]
rate = "1/10d"
burst = {BURST}
on_failure = "allow"

[limits.patient]
rate = "10/h"
on_failure = "deny"
deadline = "30s"
"""
AGENT = f'deadline = "{int(DEADLINE * 1000)}ms"'
KEYS = [f"k{number}" for number in range(12)]

MakeRedis = Callable[..., RedisServer]


def start(rack: Rack, redis: RedisServer) -> Agent:
    """An agent that is connected to this Redis."""
    agent = rack.start(LIMITS, agent=AGENT, redis=redis.config() + ASK_ALWAYS)
    agent.wait_for_redis()
    return agent


def wait_until_quiet(agent: Agent) -> None:
    """Nothing is asked of Redis any more, nor to be given back to it."""
    wait_until(lambda: agent.metric("redis_questions_open") == 0, "nothing is open")


def buckets(redis: RedisServer) -> dict[str, StoredBucket]:
    """What Redis holds, by the key that clients name."""
    return {key.rsplit(b":", 1)[1].decode(): redis.bucket(key) for key in redis.keys()}


def used(redis: RedisServer) -> dict[str, int]:
    return {key: bucket.permits_used for key, bucket in buckets(redis).items()}


# Without Redis


def test_an_agent_starts_without_redis_and_picks_it_up_when_it_appears(rack: Rack, make_redis: MakeRedis) -> None:
    redis = make_redis()
    agent = rack.start(LIMITS, agent='deadline = "30s"', redis=redis.config() + ASK_ALWAYS)
    info = agent.ask("info")
    assert (info["degraded"], info["store"]) == (True, "redis")
    began = time.monotonic()
    lax = agent.allow("lax", "k")
    assert lax == (True, BURST, BURST, 0, 0, "ok", "fallback", "", lax.window_us, 0)
    assert lax.window_us == BURST * 10 * 86_400 * 1_000_000
    assert agent.allow("lax", "k", BURST + 1).verdict == "never"
    strict = agent.allow("strict", "k")
    assert (strict.allowed, strict.limit, strict.remaining) == (False, BURST, 0)
    assert (strict.verdict, strict.source) == ("unavailable", "fallback")
    assert 0 < strict.retry_after_us <= 2_000_000, "until the next attempt"
    assert agent.peek("strict", "k").verdict == "unavailable"
    assert agent.allow({"name": "own", "rate": "1/h"}, "k")[5:7] == ("ok", "fallback")
    assert time.monotonic() - began < 5, "at once, not at the deadline"
    redis.start()
    wait_until(lambda: agent.allow("strict", "later").source == "store", "the store answers")
    assert agent.ask("info")["degraded"] is False


def test_a_host_that_does_not_resolve_is_an_outage_and_no_more(rack: Rack) -> None:
    agent = rack.start(LIMITS, agent=AGENT, redis='url = "redis://no-such-host.invalid"')
    for _ in range(20):
        assert agent.allow("lax", "k").source == "fallback"
        time.sleep(0.02)
    wait_until(lambda: "down" in agent.log(), "it is logged")
    agent.stop()


# Under load


def during(
    agent: Agent, limit: str, disturb: Callable[[], None], seconds: float, keys: list[str] | None = None
) -> tuple[Result, float]:
    """Runs a load, disturbs Redis in its midst, waits until the store answers again and that long on top.

    Also returns the moment from which on only the store should answer.
    """
    with Load(agent, limit, keys or KEYS) as load:
        time.sleep(0.5)
        disturb()
        agent.wait_for_redis()
        time.sleep(0.3)
        recovered = time.monotonic()
        time.sleep(seconds)
        return load.finish(), recovered


def check_sources(result: Result, recovered: float) -> None:
    sources = result.sources_since(recovered)
    assert sources["store"] > 50, sources
    assert sources["fallback"] <= sources["store"] / 20, f"the store answers again: {sources}"


def test_killing_and_restarting_redis_under_load(rack: Rack, make_redis: MakeRedis) -> None:
    # The append-only file keeps what was granted, as far as Redis's own process had written it.
    redis = make_redis("--appendonly", "yes", "--appendfsync", "no")
    redis.start()
    agent = start(rack, redis)

    def restart() -> None:
        redis.kill()
        time.sleep(1.0)
        redis.start()

    result, recovered = during(agent, "strict", restart, 0.7)
    result.check_times(DEADLINE)
    check_sources(result, recovered)
    granted = result.granted()
    in_redis = used(redis)
    assert sum(granted.values()) > 100
    for key in KEYS:
        assert granted[key] <= in_redis[key] <= BURST, "Redis knows of every grant"
    verdicts = {sample.decision.verdict for sample in result.samples}
    assert "unavailable" in verdicts, "it was an outage"


def test_stopping_redis_for_three_seconds_under_load(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis)

    def stop() -> None:
        redis.pause()
        time.sleep(3.0)
        redis.resume()

    result, recovered = during(agent, "strict", stop, 0.7)
    result.check_times(DEADLINE)
    check_sources(result, recovered)
    granted = result.granted()
    wait_until_quiet(agent)
    in_redis = used(redis)
    for key in KEYS:
        assert granted[key] <= BURST
        assert granted[key] <= in_redis[key], "Redis knows of every grant"
    assert {key: in_redis[key] for key in KEYS} == {key: granted[key] for key in KEYS}, "and of no other"


def test_stopping_redis_again_and_again_for_less_than_a_second_under_load(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis)

    def stutter() -> None:
        for _ in range(4):
            redis.pause()
            time.sleep(0.45)
            redis.resume()
            time.sleep(0.2)

    result, recovered = during(agent, "strict", stutter, 0.5)
    result.check_times(DEADLINE)
    check_sources(result, recovered)
    assert agent.metric("redis_stalls_total") == 0, "so short a stop is not an outage"
    wait_until_quiet(agent)
    granted = result.granted()
    assert used(redis) == {key: granted[key] for key in KEYS}


def test_flushing_the_scripts_under_load(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis)

    def flush() -> None:
        for _ in range(30):
            redis.call("SCRIPT", "FLUSH")
            time.sleep(0.02)

    result, recovered = during(agent, "strict", flush, 0.5)
    result.check_times(DEADLINE)
    check_sources(result, recovered)
    assert agent.metric("redis_script_reloads_total") >= 5
    failed = sum(sample.decision.source == "fallback" for sample in result.samples)
    assert failed <= len(result.samples) / 200, "what met a lost script was asked again in time"
    wait_until_quiet(agent)
    granted = result.granted()
    assert used(redis) == {key: granted[key] for key in KEYS}, "asked again, and charged once"


def test_policy_allow_lets_everything_pass_during_an_outage_under_load(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis)

    def restart() -> None:
        redis.kill()
        time.sleep(0.7)
        redis.start()

    keys = [f"many{number}" for number in range(400)]
    result, recovered = during(agent, "lax", restart, 0.5, keys)
    result.check_times(DEADLINE)
    check_sources(result, recovered)
    assert all(sample.decision.allowed for sample in result.samples)
    assert any(sample.decision.source == "fallback" for sample in result.samples)


def test_two_agents_through_an_outage_never_pass_the_limit_together(rack: Rack, make_redis: MakeRedis) -> None:
    redis = make_redis("--appendonly", "yes", "--appendfsync", "no")
    redis.start()
    agents = [start(rack, redis) for _ in range(2)]
    with Load(agents[0], "strict", KEYS[:3], 3) as first, Load(agents[1], "strict", KEYS[:3], 3) as second:
        time.sleep(0.3)
        redis.pause()
        time.sleep(0.5)
        redis.resume()
        time.sleep(0.3)
        redis.kill()
        time.sleep(0.3)
        redis.start()
        for agent in agents:
            agent.wait_for_redis()
        time.sleep(0.5)
        results = [load.finish() for load in (first, second)]
    for result in results:
        result.check_times(DEADLINE)
    granted = sum((result.granted() for result in results), start=results[0].granted() - results[0].granted())
    for key in KEYS[:3]:
        assert 0 < granted[key] <= BURST


# Late grants


@pytest.mark.parametrize("seconds", [0.6, 3.0])
def test_a_grant_that_comes_after_the_refusal_is_given_back(rack: Rack, redis: RedisServer, seconds: float) -> None:
    agent = start(rack, redis)
    with agent.connect() as client:
        for key in KEYS:
            assert client.allow("strict", key, 50).source == "store"
        redis.pause()
        # In one write, so that all of it is on its way to Redis when the deadline comes.
        client.send(b"".join(request("allow", "strict", key, 100, msgid=n) for n, key in enumerate(KEYS)))
        refused = client.receive_many(len(KEYS))
        assert {reply.result[5] for reply in refused.values()} == {"unavailable"}
        time.sleep(seconds - DEADLINE)
        redis.resume()
        agent.wait_for_redis()
        wait_until(lambda: agent.metric("late_answers_total") >= len(KEYS), "the late answers have come")
        wait_until_quiet(agent)
        assert used(redis) == dict.fromkeys(KEYS, 50), "the refused queries are charged to nobody"
        assert agent.metric("redis_given_back_total") == len(KEYS)
        for key in KEYS:
            assert client.peek("strict", key).remaining == BURST - 50


def test_a_late_grant_is_given_back_once(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis)
    with agent.connect() as client:
        assert client.allow("strict", "k", 50).source == "store"
        for _ in range(3):
            redis.pause()
            assert client.allow("strict", "k", 10).verdict == "unavailable"
            redis.resume()
            wait_until_quiet(agent)
        assert client.peek("strict", "k").remaining == BURST - 50
        assert agent.metric("redis_given_back_total") == 3


def test_a_late_peek_and_a_late_refusal_give_nothing_back(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis)
    with agent.connect() as client:
        assert client.allow("strict", "k", BURST).source == "store"
        redis.pause()
        client.post("peek", "strict", "k")
        client.post("allow", "strict", "k", 1)
        client.post("allow", "strict", "k", 0)
        client.receive_many(3)
        redis.resume()
        wait_until_quiet(agent)
        assert client.peek("strict", "k").remaining == 0
        assert agent.metric("redis_given_back_total") == 0


def test_a_late_grant_whose_asker_was_let_through_stays_charged(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis)
    with agent.connect() as client:
        assert client.allow("lax", "k", 50).source == "store"
        redis.pause()
        assert client.allow("lax", "k", 10)[5:7] == ("ok", "fallback")
        redis.resume()
        wait_until_quiet(agent)
        assert client.peek("lax", "k").remaining == BURST - 60


def test_a_query_of_a_client_that_left_is_still_settled(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis)
    redis.pause()
    with agent.connect() as client:
        client.post("allow", "strict", "k", 10)
    time.sleep(2 * DEADLINE)
    redis.resume()
    wait_until_quiet(agent)
    wait_until(lambda: agent.metric("connections") == 0, "the client's place is free")
    assert used(redis).get("k", 0) == 0, "nobody got the grant"


# Deadlines


def test_each_query_has_its_own_deadline(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis)
    redis.pause()
    waits = {}
    with agent.connect() as client:
        began = time.monotonic()
        by_msgid = {}
        for milliseconds in (700, 50, 400, 1, 0):
            msgid = client.post("allow", "strict", f"k{milliseconds}", 1, {"deadline_us": milliseconds * 1000})
            by_msgid[msgid] = milliseconds
        for _ in range(5):
            reply = client.receive()
            assert reply.result[5:7] == ["unavailable", "fallback"]
            waits[by_msgid[reply.msgid]] = time.monotonic() - began
    assert list(waits) == [0, 1, 50, 400, 700], "in the order of their deadlines"
    for milliseconds, wait in waits.items():
        assert milliseconds / 1000 <= wait + 0.001, "not before its time"
        assert wait < milliseconds / 1000 + 1.0


def test_past_so_many_open_queries_a_connection_is_overloaded_and_others_are_not(
    rack: Rack, redis: RedisServer
) -> None:
    agent = start(rack, redis)
    redis.pause()
    count = 6000
    with agent.connect() as client, agent.connect() as other:
        client.send(
            b"".join(
                request("allow", "strict", "k", 1, {"deadline_us": 600_000}, msgid=msgid) for msgid in range(count)
            )
        )
        other.post("allow", "strict", "k")
        assert other.receive().result[5] == "unavailable"
        replies = client.receive_many(count)
    errors = [reply.error for reply in replies.values() if reply.error]
    assert 0 < len(errors) <= count - 4096
    assert all(error.startswith("overloaded: ") for error in errors)
    assert agent.metric("requests_overloaded_total") == len(errors)
    assert sum(reply.result is not None and reply.result[5] == "unavailable" for reply in replies.values()) >= 4096


# Errors of a Redis that is there


def with_little_memory(redis: RedisServer) -> Callable[[], None]:
    redis.call("CONFIG", "SET", "maxmemory", "1")
    return lambda: redis.call("CONFIG", "SET", "maxmemory", "0")


def as_a_replica(redis: RedisServer) -> Callable[[], None]:
    redis.call("REPLICAOF", "127.0.0.1", "1")
    return lambda: redis.call("REPLICAOF", "NO", "ONE")


@pytest.mark.parametrize("damage", [with_little_memory, as_a_replica, RedisServer.hang])
def test_a_redis_that_answers_errors_is_an_outage_until_it_is_well(
    rack: Rack, redis: RedisServer, damage: Callable[[RedisServer], Callable[[], None]]
) -> None:
    agent = start(rack, redis)
    assert agent.allow("strict", "before").source == "store"
    repair = damage(redis)
    with agent.connect() as client:

        def is_unavailable() -> bool:
            return client.allow("strict", "k").verdict == "unavailable"

        wait_until(is_unavailable, "the policy answers")
        attempts = agent.metric("redis_connection_attempts_total")
        began = time.monotonic()
        for _ in range(30):
            assert is_unavailable()
            assert client.allow("lax", "k")[5:7] == ("ok", "fallback")
            time.sleep(0.02)
        more = agent.metric("redis_connection_attempts_total") - attempts
        assert more <= 3 * (time.monotonic() - began + 1) + 2, "it does not hammer the server"
        repair()
        wait_until(lambda: client.allow("strict", "after").source == "store", "the store answers")
    assert agent.log().count("warning") < 30, "one line per change of state"


def test_connections_that_redis_kills_are_made_anew(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis)
    for _ in range(3):
        redis.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        wait_until(lambda: agent.allow("strict", "k").source == "store", "the store answers")
    assert agent.metric("redis_connects_total") >= 4


# The end


def stop_while_it_waits(rack: Rack, redis: RedisServer, limit: str, deadline_us: int) -> tuple[Client, float]:
    """Asks about ten keys of a Redis that is stopped, signals the agent, and gives the client back."""
    agent = start(rack, redis)
    client = agent.connect()
    client.ask("ping")
    redis.pause()
    for number in range(10):
        client.post("allow", limit, f"k{number}", 1, {"deadline_us": deadline_us})
    wait_until(lambda: agent.metric("queries_open") == 10, "they wait")
    began = time.monotonic()
    agent.signal(signal.SIGTERM)
    wait_until(lambda: not agent.path.exists(), "it accepts nobody any more")
    return client, began


def test_sigterm_waits_for_queries_that_redis_does_not_answer(rack: Rack, redis: RedisServer) -> None:
    client, _ = stop_while_it_waits(rack, redis, "strict", 1_200_000)
    with client:
        client.post("ping")
        replies = client.receive_many(11)
        assert (replies[12].error or "").startswith("shutting_down: ")
        for msgid in range(2, 12):
            assert replies[msgid].result[5:7] == ["unavailable", "fallback"]
        assert client.is_hung_up()
    rack.close()  # exit code 0


def test_sigterm_answers_by_policy_what_would_wait_longer_than_it_does(rack: Rack, redis: RedisServer) -> None:
    client, began = stop_while_it_waits(rack, redis, "patient", 30_000_000)
    with client:
        try:
            replies = client.receive_many(10)
        except HungUp:
            raise AssertionError("the connection was closed without an answer") from None
        for reply in replies.values():
            assert reply.error is not None or reply.result[5:7] == ["unavailable", "fallback"]
        assert client.is_hung_up()
    assert time.monotonic() - began < 10
    rack.close()


def test_sigterm_waits_for_answers_that_redis_does_give(rack: Rack, redis: RedisServer) -> None:
    client, _ = stop_while_it_waits(rack, redis, "patient", 10_000_000)
    with client:
        redis.resume()
        replies = client.receive_many(10)
        assert all(reply.result[6] == "store" for reply in replies.values())
        assert client.is_hung_up()
    rack.close()
    assert len(used(redis)) == 10


def test_sigterm_ends_an_agent_whose_redis_is_stopped_or_gone(rack: Rack, redis: RedisServer) -> None:
    first, second = start(rack, redis), start(rack, redis)
    redis.pause()
    assert first.allow("strict", "k").verdict == "unavailable"
    began = time.monotonic()
    first.stop()
    redis.kill()
    wait_until(lambda: second.ask("info")["degraded"], "it has noticed")
    second.stop()
    assert time.monotonic() - began < 10
