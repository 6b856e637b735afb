# SPDX-License-Identifier: MIT
"""Many questions in one request, and what was taken given back."""

from __future__ import annotations

import pytest
from expectations import BRIEF, is_degraded
from fake_agent import LIMITED, OK, answers, silent

import allowd
from allowd.call import MAX_MANY

ITEMS = [("api", "a", 1), ("login", b"b", 2), ({"name": "x", "rate": "1/s"}, "c", 3)]


def replies(result, error=None):
    """A script that answers one request so, and all others with a decision."""

    def script(peer):
        peer.reply(peer.request(), result, error)
        request = peer.request()
        while request is not None:
            peer.reply(request)
            request = peer.request()

    return script


def test_many_are_one_request_and_answered_in_order(agent, client):
    fake = agent(replies([OK, LIMITED, OK]))
    decisions = client().allow_many(iter(ITEMS), "all")
    assert decisions == [allowd.Decision(*OK), allowd.Decision(*LIMITED), allowd.Decision(*OK)]
    [[_, _, method, params]] = fake.requests
    assert method == "allow_many"
    assert params[:2] == [[list(item) for item in ITEMS], "all"]
    assert set(params[2]) == {"deadline_us"}


def test_the_mode_is_each_unless_it_is_said_otherwise(agent, client):
    fake = agent(replies([OK]))
    client().allow_many(ITEMS[:1])
    assert fake.requests[0][3][1] == "each"


def test_none_of_many_asks_nobody(client):
    c = client()
    assert c.allow_many([]) == []
    assert c.degraded_total == 0


def test_many_have_a_bound_and_two_modes(client):
    with pytest.raises(ValueError, match="256"):
        client().allow_many([("api", "k", 1)] * (MAX_MANY + 1))
    with pytest.raises(ValueError, match="mode"):
        client().allow_many(ITEMS, "any")
    with pytest.raises(TypeError):
        client().allow_many([("api", 5, 1)])
    with pytest.raises(allowd.AgentError, match="too_large"):
        client().allow_many([("api", "k" * 1000, 1)] * 9)


def test_without_an_answer_the_policy_decides_every_item(agent, client):
    agent(silent)
    c = client()
    decisions = c.allow_many(ITEMS, timeout=BRIEF)
    assert len(decisions) == 3 and all(is_degraded(decision) for decision in decisions)
    refused = c.allow_many(ITEMS, timeout=BRIEF, fail="closed")
    assert [decision.allowed for decision in refused] == [False] * 3
    assert c.degraded_total == 6


def test_an_agent_in_trouble_leaves_many_to_the_policy(agent, client):
    agent(replies(None, "shutting_down: it stops"))
    assert all(is_degraded(decision) for decision in client().allow_many(ITEMS))


def test_a_mistake_in_one_of_many_is_the_callers(agent, client):
    agent(replies(None, "unknown_limit: no limit is named \"x\""))
    with pytest.raises(allowd.AgentError) as caught:
        client().allow_many(ITEMS)
    assert caught.value.code == "unknown_limit"


@pytest.mark.parametrize("result", [OK, [OK, OK], [OK] * 4, [OK, OK, "ok"], "ok", None], ids=str)
def test_another_number_of_decisions_is_garbage(agent, client, eventually, result):
    fake = agent(replies(result), answers())
    c = client()
    assert all(is_degraded(decision) for decision in c.allow_many(ITEMS))
    eventually(lambda: fake.client_closed == [0])
    assert not c.allow("api", "k").degraded


def test_a_refund_is_a_request_without_options(agent, client):
    fake = agent(replies(OK))
    assert client().refund("api", "k", 2) == allowd.Decision(*OK)
    assert fake.requests[0][2:] == ["refund", ["api", "k", 2]]


def test_a_refund_that_nobody_answers_is_a_degraded_decision(agent, client):
    agent(silent)
    c = client()
    assert is_degraded(c.refund("api", "k", timeout=BRIEF))
    assert not c.refund("api", "k", timeout=BRIEF, fail="closed").allowed


def test_a_refund_that_the_limit_does_not_take_is_the_callers_mistake(agent, client):
    agent(replies(None, "forbidden: the limit takes no refunds"))
    with pytest.raises(allowd.AgentError) as caught:
        client().refund("api", "k")
    assert caught.value.code == "forbidden"
