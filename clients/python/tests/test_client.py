# SPDX-License-Identifier: MIT
"""Asking a scripted agent, and the fail policy when it cannot be asked."""

from __future__ import annotations

import logging

import pytest
from expectations import is_degraded
from fake_agent import LIMITED, OK, PATIENCE, answers

import allowd
from allowd.call import deadline_for_agent


def test_allow_gives_the_agents_decision(agent, client):
    agent(answers(LIMITED))
    decision = client().allow("api", "tenant-42")
    assert not decision
    assert (decision.verdict, decision.retry_after, decision.degraded) == ("limited", 0.1, False)


def test_allow_sends_limit_key_cost_and_what_is_left_of_the_deadline(agent, client):
    fake = agent(answers())
    client().allow("api", "tenant-42", 3, timeout=2.0)
    kind, _, method, (limit, key, cost, options) = fake.requests[0]
    assert (kind, method, limit, key, cost) == (0, "allow", "api", "tenant-42", 3)
    assert list(options) == ["deadline_us"]
    assert 0 < options["deadline_us"] <= 2_000_000 - 5000


@pytest.mark.parametrize(
    "left, deadline_us",
    [(2.0, 1_995_000), (0.05, 45_000), (0.01, 9_000), (0.00001, 9), (0.000001, 1), (0.0, 1), (-1.0, 1)],
)
def test_a_tenth_but_at_most_5_ms_is_kept_for_the_way_back(left, deadline_us):
    assert deadline_for_agent(left) == deadline_us


def test_the_default_deadline_is_50_ms(agent, socket_path):
    fake = agent(answers())
    with allowd.Client(socket_path, breaker=allowd.Breaker(threshold=1000)) as client:
        while not fake.requests:  # a busy machine may take longer than that to send one
            client.allow("api", "k")
    assert 0 < fake.requests[0][3][3]["deadline_us"] <= 45000


def test_peek_and_the_others_take_no_options(agent, client):
    results = {"peek": OK, "ping": "pong", "info": {"version": "1"}, "stats": {"queries": 5}}

    def script(peer):
        while True:
            request = peer.request()
            if request is None:
                return
            peer.reply(request, results[request[2]])

    fake = agent(script)
    c = client()
    assert c.peek("api", "k", 2) == allowd.Decision(*OK)
    assert c.ping() is True
    assert c.info() == {"version": "1"}
    assert c.stats() == {"queries": 5}
    assert [request[2:] for request in fake.requests] == [
        ["peek", ["api", "k", 2]],
        ["ping", []],
        ["info", []],
        ["stats", []],
    ]


def test_an_inline_limit_is_sent_as_a_map(agent, client):
    fake = agent(answers())
    limit = {"name": "checkout", "rate": "100/s", "burst": 200}
    client().allow(limit, "k")
    assert fake.requests[0][3][0] == limit


def test_calls_share_one_connection(agent, client):
    fake = agent(answers())
    c = client()
    for _ in range(5):
        assert not c.allow("api", "k").degraded
    assert fake.connections == 1
    assert len({request[1] for request in fake.requests}) == 5


def test_arguments_that_cannot_be_sent_are_refused_without_an_agent(client):
    c = client()
    for arguments in (
        (5, "k"),
        ("api", 5),
        ("api", None),
        ("api", "k", "1"),
        ("api", "k", 1.0),
        ("api", "k", True),
    ):
        with pytest.raises(TypeError):
            c.allow(*arguments)
    with pytest.raises(ValueError):
        c.allow("api", "k", 2**64)
    with pytest.raises(allowd.AgentError) as caught:
        c.allow("api", "k" * 9000)
    assert caught.value.code == "too_large"
    assert c.degraded_total == 0


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_a_timeout_without_sense_is_refused(client, timeout):
    with pytest.raises(ValueError):
        allowd.Client("nowhere.sock", timeout=timeout)
    with pytest.raises(ValueError):
        client().allow("api", "k", timeout=timeout)


def test_a_policy_that_does_not_exist_is_refused(client):
    with pytest.raises(ValueError):
        allowd.Client("nowhere.sock", fail="maybe")
    with pytest.raises(ValueError):
        client().allow("api", "k", fail="maybe")


def test_the_socket_is_found_by_the_environment(agent, socket_path, monkeypatch):
    agent(answers())
    monkeypatch.setenv("ALLOWD_SOCKET", socket_path)
    with allowd.Client(timeout=PATIENCE) as client:
        assert not client.allow("api", "k").degraded


def test_a_path_object_will_do(agent, tmp_path):
    agent(answers())
    with allowd.Client(tmp_path / "allowd.sock", timeout=PATIENCE) as client:
        assert not client.allow("api", "k").degraded


# -- The fail policy


def test_without_an_agent_open_allows(client):
    c = client()
    assert is_degraded(c.allow("api", "k"))
    assert is_degraded(c.peek("api", "k"))
    assert c.degraded_total == 2


def test_without_an_agent_closed_refuses_and_says_when_to_come_back(client):
    decision = client(fail="closed").allow("api", "k")
    assert decision == allowd.Decision(
        False, 0, 0, 1_000_000, 0, "unavailable", "client", "", 0, 0, degraded=True
    )


def test_the_policy_may_be_chosen_per_call(client):
    assert not client(fail="open").allow("api", "k", fail="closed").allowed
    assert client(fail="closed").allow("api", "k", fail="open").allowed
    assert not client(fail="open").peek("api", "k", fail="closed").allowed
    assert [d.allowed for d in client().allow_batch([("api", "k", 1)], fail="closed")] == [False]


def test_questions_about_the_agent_have_no_policy(client):
    c = client()
    for question in (c.ping, c.info, c.stats):
        with pytest.raises(allowd.Unavailable):
            question()
    assert c.degraded_total == 0


@pytest.mark.parametrize("code", ["bad_request", "unknown_method", "unknown_limit", "too_large", "forbidden"])
def test_the_callers_mistakes_are_raised_under_any_policy(agent, client, code):
    agent(answers(None, f"{code}: because"))
    c = client()
    for fail in ("open", "closed"):
        with pytest.raises(allowd.AgentError) as caught:
            c.allow("api", "k", fail=fail)
        assert (caught.value.code, caught.value.text) == (code, "because")
        assert not isinstance(caught.value, allowd.Unavailable)


@pytest.mark.parametrize("code", ["overloaded", "shutting_down", "internal", "code_of_tomorrow"])
def test_an_agent_that_cannot_decide_leaves_it_to_the_policy(agent, client, code):
    fake = agent(answers(None, f"{code}: because"))
    c = client()
    assert is_degraded(c.allow("api", "k"))
    with pytest.raises(allowd.AgentUnavailable) as caught:
        c.ping()
    assert caught.value.code == code
    assert fake.connections == 1


def test_going_degraded_and_coming_back_are_logged_once_each(agent, client, caplog):
    caplog.set_level(logging.INFO, logger="allowd")
    c = client()
    c.allow("api", "secret-key")
    c.allow("api", "secret-key")
    assert len(caplog.records) == 1
    assert "No such file" in caplog.text
    agent(answers())
    c.allow("api", "secret-key")
    c.allow("api", "secret-key")
    assert len(caplog.records) == 2
    assert "after 2 degraded" in caplog.text
    assert "secret-key" not in caplog.text
