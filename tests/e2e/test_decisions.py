# SPDX-License-Identifier: MIT
"""What the application socket answers, to the letter of the wire's description. Memory store.

Limits refill slowly, so that the numbers of a key's first charge are exact however slow the machine is.
"""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest

from daemon import Agent, Rack
from rpc import Client, Decision, Refused, request

LIMITS = """
[limits.api]
rate = "10/h"

[limits.burst]
rate = "1/h"
burst = 5

[limits."with blank"]
rate = "1/h"
"""
HOUR = 3_600_000_000  # µs
SLACK = 60_000_000  # µs that a test may take between two queries


@pytest.fixture(scope="module")
def agent(shared_rack: Rack) -> Agent:
    return shared_rack.start(LIMITS)


@pytest.fixture
def client(agent: Agent) -> Any:
    with agent.connect() as connected:
        yield connected


def inline(name: str = "inline", rate: str = "10/h", **more: Any) -> dict[str, Any]:
    return {"name": name, "rate": rate, **more}


def is_just_below(value: int, exact: int) -> bool:
    """True of a wait that was `exact` a moment ago."""
    return exact - SLACK <= value <= exact


# Decisions


def test_an_allowed_query_is_charged_and_says_what_is_left(client: Client) -> None:
    assert client.allow("api", "first") == (True, 10, 9, 0, HOUR // 10, "ok", "local", "", HOUR, HOUR // 10)


def test_a_cost_is_charged_as_a_whole(client: Client) -> None:
    assert client.allow("api", "cost", 4) == (True, 10, 6, 0, 4 * HOUR // 10, "ok", "local", "", HOUR, HOUR // 10)
    assert client.peek("api", "cost").remaining == 6


def test_a_cost_of_all_that_is_there_passes(client: Client) -> None:
    assert client.allow("burst", "all", 5) == (True, 5, 0, 0, 5 * HOUR, "ok", "local", "", 5 * HOUR, HOUR)


def test_a_refusal_charges_nothing_and_says_when_to_come_back(client: Client) -> None:
    client.allow("burst", "denied", 3)
    first = client.allow("burst", "denied", 4)
    assert first[:3] == (False, 5, 2)
    assert first[5:8] == ("limited", "local", "")
    assert is_just_below(first.retry_after_us, 2 * HOUR)
    assert is_just_below(first.reset_after_us, 3 * HOUR)
    assert is_just_below(first.more_after_us, HOUR)
    assert first.window_us == 5 * HOUR
    second = client.allow("burst", "denied", 4)
    assert second.retry_after_us <= first.retry_after_us, "a refusal must not put off the next grant"
    assert client.allow("burst", "denied", 2).allowed, "a refusal must charge nothing"


def test_a_cost_above_the_capacity_can_never_pass(client: Client) -> None:
    assert client.allow("burst", "never", 6) == (False, 5, 5, -1, 0, "never", "local", "", 5 * HOUR, 0)
    assert client.peek("burst", "never", 6) == (False, 5, 5, -1, 0, "never", "local", "", 5 * HOUR, 0)
    client.allow("burst", "never", 2)
    used = client.allow("burst", "never", 6)
    assert (used.allowed, used.remaining, used.retry_after_us, used.verdict) == (False, 3, -1, "never")
    assert is_just_below(used.reset_after_us, 2 * HOUR)


@pytest.mark.parametrize("cost", [2**53, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_cost_of_any_size_is_never_and_overflows_nothing(client: Client, cost: int) -> None:
    decision = client.allow("burst", f"huge {cost}", cost)
    assert decision == (False, 5, 5, -1, 0, "never", "local", "", 5 * HOUR, 0)


def test_a_peek_charges_nothing_and_shows_what_is_there_now(client: Client) -> None:
    assert client.peek("api", "peek") == (True, 10, 10, 0, 0, "ok", "local", "", HOUR, 0)
    client.allow("api", "peek", 7)
    for _ in range(3):
        shown = client.peek("api", "peek", 3)
        assert shown[:4] == (True, 10, 3, 0)
        assert shown[5:8] == ("ok", "local", "")
        assert is_just_below(shown.reset_after_us, 7 * HOUR // 10)
    refused = client.peek("api", "peek", 4)
    assert (refused.allowed, refused.remaining, refused.verdict) == (False, 3, "limited")
    assert is_just_below(refused.retry_after_us, HOUR // 10)


def test_a_cost_of_zero_is_a_peek_that_is_always_allowed(client: Client) -> None:
    assert client.allow("burst", "zero", 0) == (True, 5, 5, 0, 0, "ok", "local", "", 5 * HOUR, 0)
    client.allow("burst", "zero", 5)
    for decision in (client.allow("burst", "zero", 0), client.peek("burst", "zero", 0)):
        assert (decision.allowed, decision.remaining, decision.retry_after_us) == (True, 0, 0)
        assert (decision.verdict, decision.source) == ("ok", "local")


def test_keys_and_limits_do_not_share(client: Client) -> None:
    client.allow("burst", "shared", 5)
    assert client.allow("burst", "shared ", 5).allowed
    assert client.allow("burst", "", 5).allowed
    assert client.allow("api", "shared", 5).allowed
    assert client.allow("with blank", "shared").allowed
    assert not client.allow("burst", "shared").allowed
    assert not client.allow("burst", "").allowed


def test_no_two_pairs_of_limit_and_key_are_one(client: Client) -> None:
    assert client.allow(inline("a", burst=1), "b:c").allowed
    assert client.allow(inline("a:b", burst=1), "c").allowed
    assert client.allow(inline("a:", burst=1), "b:c").allowed
    assert not client.allow(inline("a", burst=1), "b:c").allowed


# Inline limits


def test_an_application_can_bring_its_own_limit(client: Client) -> None:
    limit = inline("checkout", "100/h", burst=200)
    expected = (True, 200, 199, 0, HOUR // 100, "ok", "local", "", 2 * HOUR, HOUR // 100)
    assert client.allow(limit, "mine") == expected
    assert client.peek(limit, "mine").remaining == 199
    assert client.allow(inline("no burst", "7/h"), "mine").limit == 7


def test_an_inline_limit_lives_apart_from_a_configured_one_of_that_name(client: Client) -> None:
    client.allow("burst", "apart", 5)
    assert client.allow(inline("burst", "1/h", burst=5), "apart", 5).allowed


def test_an_inline_limits_numbers_may_change_from_call_to_call_and_use_stays(client: Client) -> None:
    client.allow(inline("moving", "10/h"), "k", 8)
    raised = client.allow(inline("moving", "10/h", burst=20), "k", 0)
    assert (raised.limit, raised.remaining) == (20, 12)
    lowered = client.allow(inline("moving", "10/h", burst=5), "k", 1)
    assert (lowered.allowed, lowered.limit, lowered.remaining) == (False, 5, 0)
    assert is_just_below(lowered.retry_after_us, 4 * HOUR // 10)


def test_more_inline_limits_than_are_cached_all_keep_their_state(client: Client) -> None:
    count = 1500
    for number in range(count):
        client.post("allow", inline(f"many {number}", burst=2), "k")
    assert all(reply.result[0] for reply in client.receive_many(count).values())
    for number in (0, 1, 700, count - 1):
        assert client.peek(inline(f"many {number}", burst=2), "k").remaining == 1


# Errors


@pytest.mark.parametrize(
    ("name", "params", "code"),
    [
        ("unknown limit", ["nobody", "k"], "unknown_limit"),
        ("unknown limit of odd bytes", ['\x00\n"', "k"], "unknown_limit"),
        ("empty limit", ["", "k"], "unknown_limit"),
        ("no params", [], "bad_request"),
        ("no key", ["api"], "bad_request"),
        ("a fifth param", ["api", "k", 1, {}, 1], "bad_request"),
        ("a number as limit", [1, "k"], "bad_request"),
        ("nil as limit", [None, "k"], "bad_request"),
        ("a list as limit", [["api"], "k"], "bad_request"),
        ("a number as key", ["api", 1], "bad_request"),
        ("nil as key", ["api", None], "bad_request"),
        ("a map as key", ["api", {}], "bad_request"),
        ("a negative cost", ["api", "k", -1], "bad_request"),
        ("the most negative cost", ["api", "k", -(2**63)], "bad_request"),
        ("a fraction as cost", ["api", "k", 1.0], "bad_request"),
        ("text as cost", ["api", "k", "1"], "bad_request"),
        ("true as cost", ["api", "k", True], "bad_request"),
        ("a list as options", ["api", "k", 1, []], "bad_request"),
        ("an unknown option", ["api", "k", 1, {"deadline": 1}], "bad_request"),
        ("an option of a later version", ["api", "k", 1, {"wait_us": 5}], "bad_request"),
        ("a number as option", ["api", "k", 1, {1: 1}], "bad_request"),
        ("a negative deadline", ["api", "k", 1, {"deadline_us": -1}], "bad_request"),
        ("text as deadline", ["api", "k", 1, {"deadline_us": "1s"}], "bad_request"),
        ("an empty inline limit", [{}, "k"], "bad_request"),
        ("an inline limit without name", [{"rate": "1/s"}, "k"], "bad_request"),
        ("an inline limit with an empty name", [{"name": "", "rate": "1/s"}, "k"], "bad_request"),
        ("an inline limit with a line break in its name", [{"name": "a\nb", "rate": "1/s"}, "k"], "bad_request"),
        (
            "an inline limit with a NUL in a tier's name",
            [{"name": "a", "tiers": [{"name": "\0", "rate": "1/s"}]}, "k"],
            "bad_request",
        ),
        ("an inline limit with a long name", [{"name": "n" * 129, "rate": "1/s"}, "k"], "bad_request"),
        ("an inline limit without rate", [{"name": "n"}, "k"], "bad_request"),
        ("an inline limit with a misspelt key", [{"name": "n", "rate": "1/s", "brust": 1}, "k"], "bad_request"),
        ("a rate of nothing", [{"name": "n", "rate": "0/s"}, "k"], "bad_request"),
        ("a rate without unit", [{"name": "n", "rate": "10"}, "k"], "bad_request"),
        ("a rate with a wrong unit", [{"name": "n", "rate": "10/fortnight"}, "k"], "bad_request"),
        ("a number as rate", [{"name": "n", "rate": 10}, "k"], "bad_request"),
        ("a burst of nothing", [{"name": "n", "rate": "1/s", "burst": 0}, "k"], "bad_request"),
        ("a negative burst", [{"name": "n", "rate": "1/s", "burst": -5}, "k"], "bad_request"),
        ("a burst beyond counting", [{"name": "n", "rate": "1/day", "burst": 2**60}, "k"], "bad_request"),
        ("a key over 1024 bytes", ["api", "k" * 1025], "too_large"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_query_is_refused_by_code_and_the_connection_goes_on(
    client: Client, name: str, params: list[Any], code: str
) -> None:
    msgid = client.post("allow", *params)
    reply = client.receive()
    assert reply.msgid == msgid
    assert reply.result is None
    assert reply.error is not None
    assert reply.error.startswith(f"{code}: "), f"{name}: {reply.error}"
    assert len(reply.error) > len(f"{code}: "), "an error says why"
    assert client.ask("ping") == "pong"


def test_a_key_may_have_1024_bytes(client: Client) -> None:
    assert client.allow("burst", "k" * 1024, 5).allowed
    assert not client.allow("burst", "k" * 1024).allowed
    assert client.allow("burst", "k" * 1023).allowed


def test_params_must_be_an_array(client: Client) -> None:
    wrong: list[Any] = [None, {}, "api", 7]
    for params in wrong:
        client.send(msgpack.packb([0, 5, "allow", params]))
        assert (client.receive().error or "").startswith("bad_request: ")
    assert client.ask("ping") == "pong"


@pytest.mark.parametrize("method", ["", "allows", "Allow", "reset", "shutdown", "nvim_get_api_info", "m" * 4000])
def test_an_unknown_method_is_an_error_and_the_connection_goes_on(client: Client, method: str) -> None:
    with pytest.raises(Refused) as refused:
        client.ask(method, "a", 1, {"b": [None]})
    assert refused.value.code == "unknown_method"
    assert client.ask("ping") == "pong"


@pytest.mark.parametrize("method", ["help", "limits", "key", "reload", "log"])
def test_commands_of_the_admin_socket_do_not_exist_here(client: Client, method: str) -> None:
    with pytest.raises(Refused, match="unknown_method"):
        client.ask(method)


def test_a_peek_takes_no_options(client: Client) -> None:
    with pytest.raises(Refused, match="bad_request"):
        client.ask("peek", "api", "k", 1, {})


def test_ping_takes_no_params(client: Client) -> None:
    with pytest.raises(Refused, match="bad_request"):
        client.ask("ping", 1)


# Bytes


def test_replies_have_the_described_types_in_minimal_encodings(client: Client) -> None:
    client.post("allow", "api", "types")
    reply = client.receive()
    types = [bool, int, int, int, int, str, str, str, int, int]
    assert [type(element) for element in reply.result] == types
    assert reply.encoded == msgpack.packb([1, reply.msgid, None, reply.result])
    client.post("allow", "nobody", "types")
    reply = client.receive()
    assert type(reply.error) is str
    assert reply.encoded == msgpack.packb([1, reply.msgid, reply.error, None])


@pytest.mark.parametrize("msgid", [0, 1, 127, 128, 255, 256, 65535, 65536, 2**31, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
def test_a_msgid_comes_back_as_it_was_sent(client: Client, msgid: int) -> None:
    client.send(request("ping", msgid=msgid))
    reply = client.receive()
    assert reply.msgid == msgid
    assert reply.encoded == msgpack.packb([1, msgid, None, "pong"])


def test_msgids_are_not_checked(client: Client) -> None:
    client.send(request("ping", msgid=7) * 3)
    assert [client.receive().msgid for _ in range(3)] == [7, 7, 7]


INTEGER_FORMS = {"uint8": "cc", "uint16": "cd", "uint32": "ce", "uint64": "cf", "int8": "d0", "int16": "d1",
                 "int32": "d2", "int64": "d3"}  # fmt: skip
WIDTHS = {"8": ">B", "16": ">H", "32": ">I", "64": ">Q"}


@pytest.mark.parametrize("form", INTEGER_FORMS)
def test_any_encoding_of_an_integer_is_accepted(client: Client, form: str) -> None:
    def number(value: int) -> bytes:
        return bytes.fromhex(INTEGER_FORMS[form]) + struct.pack(WIDTHS[form.lstrip("uint")], value)

    options = b"\x81" + msgpack.packb("deadline_us") + number(100)
    limit = b"\x83" + b"".join(map(msgpack.packb, ("name", form, "rate", "1/h", "burst"))) + number(5)
    params = b"\x94" + limit + msgpack.packb("k") + number(2) + options
    client.send(b"\x94" + number(0) + number(77) + msgpack.packb("allow") + params)
    reply = client.receive()
    assert (reply.msgid, reply.error) == (77, None)
    assert reply.result[:3] == [True, 5, 3]


@pytest.mark.parametrize("form", ["int8", "int16", "int32", "int64"])
def test_a_negative_cost_is_refused_in_every_encoding(client: Client, form: str) -> None:
    signed = {"int8": ">b", "int16": ">h", "int32": ">i", "int64": ">q"}[form]
    cost = bytes.fromhex(INTEGER_FORMS[form]) + struct.pack(signed, -1)
    client.send(b"\x94\x00\x01" + msgpack.packb("allow") + b"\x93" + msgpack.packb("api") + msgpack.packb("k") + cost)
    assert (client.receive().error or "").startswith("bad_request: ")


def test_str_and_bin_mean_the_same_everywhere(client: Client) -> None:
    assert client.ask(b"ping") == "pong"
    assert client.ask(b"allow", b"burst", b"both", 2, {b"deadline_us": 1000})[:3] == [True, 5, 3]
    assert client.ask("allow", "burst", "both", 2)[:3] == [True, 5, 1]
    assert client.ask("allow", {b"name": b"bytes", b"rate": b"1/h", b"burst": 5}, b"both", 2)[2] == 3
    assert client.ask("allow", {"name": "bytes", "rate": "1/h", "burst": 5}, "both", 2)[2] == 1


@pytest.mark.parametrize("header", ["d9 06", "da 0006", "db 00000006", "c4 06", "c5 0006", "c6 00000006"])
def test_any_length_of_header_is_accepted(client: Client, header: str) -> None:
    key = bytes.fromhex(header) + b"header"
    client.send(b"\x94\x00\x01" + msgpack.packb("peek") + b"\x92" + msgpack.packb("api") + key)
    assert client.receive().result[:3] == [True, 10, 10]


def test_array_and_map_headers_of_any_size_are_accepted(client: Client) -> None:
    options = b"\xdf\x00\x00\x00\x01" + msgpack.packb("deadline_us") + msgpack.packb(5)
    params = b"\xdc\x00\x04" + msgpack.packb("api") + msgpack.packb("headers") + msgpack.packb(1) + options
    client.send(b"\xdd\x00\x00\x00\x04\x00\x01" + msgpack.packb("allow") + params)
    assert client.receive().result[:3] == [True, 10, 9]


def test_a_key_is_bytes_and_nothing_else(client: Client) -> None:
    for key in (b"\x00", b"\xff\xfe", b"a\nb", b'"', b"\xc3\x28"):
        assert client.allow("burst", key, 5).allowed, key
        assert not client.allow("burst", key, 1).allowed, key


def test_nil_means_the_default(client: Client) -> None:
    assert client.ask("allow", "burst", "nil", None, None)[2] == 4
    assert client.ask("allow", "burst", "nil", None, {"deadline_us": None})[2] == 3
    assert client.ask("allow", "burst", "nil")[2] == 2
    assert client.ask("peek", "burst", "nil", None)[2] == 2


def test_options_may_be_empty(client: Client) -> None:
    assert client.ask("allow", "api", "no options", 1, {})[0]


def test_memory_decides_whatever_the_deadline(client: Client) -> None:
    assert client.allow("api", "deadline", deadline_us=0)[5:7] == ("ok", "local")
    assert client.allow("api", "deadline", deadline_us=2**63 - 1)[5:7] == ("ok", "local")


# Streams


@pytest.mark.parametrize("run", [1, 3], ids=["one by one", "three in a row"])
def test_pipelined_queries_are_each_answered_once_and_never_pass_the_limit(client: Client, run: int) -> None:
    count = 3000
    keys = [n // run % 3 for n in range(count)]
    client.send(b"".join(request("allow", "burst", f"pipeline {run} {keys[n]}", msgid=n) for n in range(count)))
    replies = client.receive_many(count)
    assert sorted(replies) == list(range(count))
    for key in range(3):
        granted = [replies[n].result[0] for n in range(count) if keys[n] == key]
        assert granted == [True] * 5 + [False] * (len(granted) - 5), "memory decides in order"


def test_several_connections_share_one_budget(agent: Agent) -> None:
    clients = [agent.connect() for _ in range(20)]
    for client in clients:
        client.post("allow", "burst", "many connections")
    granted = [client.receive().result[0] for client in clients]
    for client in clients:
        client.close()
    assert sum(granted) == 5


def test_a_request_may_arrive_byte_by_byte(client: Client) -> None:
    for byte in request("allow", "api", "drip", 2):
        client.send(bytes([byte]))
    assert client.receive().result[:3] == [True, 10, 8]


def test_a_request_may_be_cut_anywhere(client: Client) -> None:
    whole = request("allow", "api", "cut " + "x" * 300, 0)
    for cut in range(1, len(whole)):
        client.send(whole[:cut])
        client.send(whole[cut:] + whole[:cut])
        client.send(whole[cut:])
    assert all(client.receive().result[0] for _ in range(2 * (len(whole) - 1)))


def test_a_notification_is_ignored_and_counted(agent: Agent, client: Client) -> None:
    before = agent.metric("notifications_total")
    client.send(msgpack.packb([2, "allow", ["burst", "notified", 5]]) * 3)
    assert client.peek("burst", "notified").remaining == 5
    assert agent.metric("notifications_total") == before + 3


def test_a_peer_that_stops_sending_still_gets_its_replies(client: Client) -> None:
    count = 2000
    client.send(b"".join(request("allow", "api", "half-closed", msgid=n) for n in range(count)))
    client.half_close()
    assert sorted(client.receive_many(count)) == list(range(count))
    assert client.is_hung_up()


def test_a_peer_that_stops_sending_in_the_middle_of_a_request_is_let_go(client: Client) -> None:
    client.send(request("ping", msgid=3) + request("ping")[:-3])
    client.half_close()
    assert client.receive().msgid == 3
    assert client.is_hung_up()


def test_each_query_is_counted_by_limit_verdict_and_source(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    with agent.connect() as client:
        for _ in range(7):
            client.allow("burst", "counted")
        client.allow("burst", "counted", 6)
        client.allow(inline("anything"), "counted")
        client.peek("api", "counted")
        assert client.ask("stats")["decisions"] == {
            "burst": {"ok/local": 5, "limited/local": 2, "never/local": 1},
            "inline": {"ok/local": 1},
            "api": {"ok/local": 1},
        }


def test_without_a_config_the_agent_keeps_limits_that_applications_define(rack: Rack) -> None:
    path = rack.new_path(".sock")
    agent = rack.start_command([], path, {"ALLOWD_SOCKET": str(path)})
    with agent.connect() as client:
        assert client.allow(inline("mine", "1/h"), "k").allowed
        assert not client.allow(inline("mine", "1/h"), "k").allowed
        with pytest.raises(Refused, match="unknown_limit"):
            client.allow("mine", "k")
        assert client.ask("info")["store"] == "memory"
    assert "memory" in agent.log(), "it says that limits are per host"


def test_a_full_table_of_keys_shares_one_overflow_bucket(rack: Rack) -> None:
    agent = rack.start('[limits.api]\nrate = "10/h"', agent="max_keys = 100")
    with agent.connect() as client:
        decisions = [client.allow("api", f"k{n}") for n in range(200)]
        overflowed = [decision for decision in decisions if decision.tier == "overflow"]
        assert len(overflowed) == 100
        assert sum(decision.allowed for decision in overflowed) == 10, "one bucket for all of them"
        assert all(decision.source == "local" and decision.limit == 10 for decision in overflowed)
        assert Decision(*client.ask("peek", "api", "k5")).remaining == 9, "a known key keeps its own"
        stats = client.ask("stats")
        assert stats["overflow_decisions_total"] == 100
        assert stats["decisions"]["api/overflow"] == {"ok/local": 10, "limited/local": 90}
