# SPDX-License-Identifier: MIT
"""The protocol's golden vectors, sent to the real agent byte for byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from daemon import Agent, Rack
from rpc import DEFAULT_TIMEOUT

_VECTORS = Path(__file__).resolve().parents[2] / "protocol" / "vectors"

Vector = dict[str, Any]


def vectors(name: str) -> list[Vector]:
    return [json.loads(line) for line in (_VECTORS / name).read_text().splitlines() if line.strip()]


REQUESTS = vectors("requests.jsonl")
MALFORMED = [vector for vector in vectors("malformed.jsonl") if vector["to"] == "agent"]


def name_of(vector: Vector) -> str:
    return str(vector["name"])


def configured_limits() -> str:
    """A limit for every name that the vectors use, large enough for their costs."""
    names = {vector["limit"] for vector in REQUESTS if isinstance(vector.get("limit"), str)} - {""}
    table = 'rate = "1000000/s"\nburst = 1000000000\nrefund = true'
    return "\n\n".join(f"[limits.{json.dumps(name, ensure_ascii=False)}]\n{table}" for name in sorted(names))


@pytest.fixture(scope="module")
def agent(shared_rack: Rack) -> Agent:
    return shared_rack.start(configured_limits())


def test_the_vectors_are_there() -> None:
    assert len(REQUESTS) >= 90
    assert len(MALFORMED) >= 30


@pytest.mark.parametrize("vector", REQUESTS, ids=name_of)
def test_a_request_of_the_vectors_is_answered_as_they_say(agent: Agent, vector: Vector) -> None:
    with agent.connect() as client:
        client.send(bytes.fromhex(vector["hex"]))
        reply = client.receive()
        assert reply.msgid == vector["msgid"]
        expected = vector.get("refusal") or ("unknown_limit" if vector.get("limit") == "" else None)
        assert (reply.error or "").split(":")[0] == (expected or ""), reply
        if expected is None and vector["method"] in ("allow", "peek"):
            assert len(reply.result) == 10
            limit = vector["limit"]
            if isinstance(limit, str):
                capacity = 1_000_000_000
            else:
                tiers = limit.get("tiers", [limit])
                capacity = min(tier.get("burst", int(tier["rate"].split("/")[0])) for tier in tiers)
            assert reply.result[1] == capacity
            assert reply.result[5] == ("ok" if vector["cost"] <= capacity else "never")
        if "items" in vector:
            assert [decision[5] for decision in reply.result] == ["ok"] * len(vector["items"])
        assert client.ask("ping") == "pong", "the connection stays open"


@pytest.mark.parametrize("vector", MALFORMED, ids=name_of)
def test_malformed_bytes_of_the_vectors_do_what_they_say(agent: Agent, vector: Vector) -> None:
    then = vector.get("then") or {"hex": "", "times": 0}
    data = bytes.fromhex(vector["hex"]) + bytes.fromhex(then["hex"]) * then["times"]
    with agent.connect() as client:
        try:
            client.send(data)
        except (BrokenPipeError, ConnectionResetError):
            assert vector["closes"]
        if vector["is"] == "incomplete":
            assert client.stays_silent(0.05)
        elif vector["is"] == "violation":
            assert not client.stays_silent(DEFAULT_TIMEOUT), "an end, and not a byte before it"
        else:
            reply = client.receive()
            assert (reply.msgid, reply.result) == (vector["msgid"], None)
            assert (reply.error or "").startswith(f"{vector['code']}: ")
        if vector["closes"]:
            assert client.is_hung_up()
        elif vector["is"] == "refusal":
            assert client.ask("ping") == "pong"
    assert agent.answers()
