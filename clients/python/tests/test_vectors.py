# SPDX-License-Identifier: MIT
"""The golden vectors of protocol/vectors, whose README says what the fields mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_agent import OK

import allowd
from allowd.wire import (
    MAX_LARGE_REPLY,
    MAX_REPLY,
    ReplyReader,
    Request,
    read_decision,
    read_error,
)

VECTORS = Path(__file__).resolve().parents[3] / "protocol" / "vectors"

pytestmark = pytest.mark.skipif(not VECTORS.is_dir(), reason="the vectors are in the repository alone")


def lines(name: str) -> list:
    path = VECTORS / name
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []


def named(vectors: list) -> dict:
    return {"argvalues": vectors, "ids": [vector["name"] for vector in vectors]}


REQUESTS = [vector for vector in lines("requests.jsonl") if vector["canonical"]]
REPLIES = lines("replies.jsonl")
MALFORMED = [vector for vector in lines("malformed.jsonl") if vector["to"] == "client"]
VIOLATIONS = [vector for vector in MALFORMED if vector["is"] == "violation"]
INCOMPLETE = [vector for vector in MALFORMED if vector["is"] == "incomplete"]

# What begins like this can only become larger than a reply may be. The decoder may say so at once, and this
# client then closes at once, rather than when the cap is passed.
HOPELESS = {
    "a reply of four billion elements",
    "a result of four billion elements",
    "an error of 5 MB that has not come",
}


def bytes_of(vector: dict) -> bytes:
    then = vector.get("then", {"hex": "", "times": 0})
    return bytes.fromhex(vector["hex"]) + bytes.fromhex(then["hex"]) * then["times"]


def subject_of(item: dict) -> list:
    return [item["limit"], bytes.fromhex(item["key_hex"]).decode("utf-8"), item["cost"]]


def test_there_are_vectors():
    assert len(REQUESTS) > 30 and len(REPLIES) > 30 and len(VIOLATIONS) > 10 and len(INCOMPLETE) > 3


@pytest.mark.parametrize("vector", **named(REQUESTS))
def test_a_request_is_written_like_this(vector):
    takes_deadline = vector.get("deadline_us") is not None
    if "items" in vector:
        items = [subject_of(item) for item in vector["items"]]
        request = Request(vector["method"], [items, vector["mode"]], takes_deadline=takes_deadline)
    elif "key_hex" in vector:
        request = Request(vector["method"], subject_of(vector), takes_deadline=takes_deadline)
    else:
        request = Request(vector["method"])
    assert request.encode(vector["msgid"], vector.get("deadline_us")).hex() == vector["hex"]


@pytest.mark.parametrize("vector", **named(REPLIES))
def test_a_reply_is_read_like_this_wherever_it_is_split(vector):
    data = bytes_of(vector)
    for at in range(1, len(data)):
        reader = ReplyReader(MAX_LARGE_REPLY if "value" in vector else MAX_REPLY)
        reader.feed(data[:at])
        assert list(reader.replies()) == []
        reader.feed(data[at:])
        [reply] = reader.replies()
        assert not reader.is_inside_a_reply()
        assert reply.msgid == vector["msgid"]
        if "error" in vector:
            error = read_error(reply.error)
            assert (error.code, error.text) == (vector["error"]["code"], vector["error"]["text"])
        else:
            assert reply.error is None
            if "decision" in vector:
                assert read_decision(reply.result) == allowd.Decision(**vector["decision"])
            else:
                assert reply.result == vector["value"]


@pytest.mark.parametrize("vector", **named(INCOMPLETE))
def test_what_is_incomplete_is_waited_for(vector):
    data = bytes_of(vector)
    reader = ReplyReader(MAX_REPLY)
    reader.feed(data)
    try:
        assert list(reader.replies()) == []
        assert reader.is_inside_a_reply() == bool(data)
    except allowd.ProtocolError:
        assert vector["name"] in HOPELESS


@pytest.mark.parametrize("vector", **named(VIOLATIONS))
def test_a_violation_closes_the_connection_and_the_fail_policy_decides(agent, client, eventually, vector):
    msgid = 7  # of all these lines

    def script(peer):
        request = peer.request()
        while request[1] != msgid:
            peer.reply(request)
            request = peer.request()
        peer.send_until_closed(bytes_of(vector))

    def answer(peer):
        peer.reply(peer.request())
        peer.wait_for_close()

    fake = agent(script, answer)
    c = client(fail="closed")
    for _ in range(msgid - 1):
        assert c.allow("api", "k") == allowd.Decision(*OK)
    decision = c.allow("api", "k")
    assert (decision.degraded, decision.allowed, decision.verdict) == (True, False, "unavailable")
    eventually(lambda: fake.client_closed == [0])
    assert c.allow("api", "k") == allowd.Decision(*OK)
