# SPDX-License-Identifier: MIT
from __future__ import annotations

import pickle

import msgpack
import pytest
from fake_agent import LIMITED, OK, reply_bytes

from allowd import AgentError, AgentUnavailable, Decision, ProtocolError
from allowd.wire import (
    MAX_LARGE_REPLY,
    MAX_REPLY,
    READ_CHUNK,
    Reply,
    ReplyReader,
    Request,
    next_msgid,
    read_decision,
    read_error,
    read_map,
    read_pong,
)


def read_all(*chunks: bytes, max_reply: int = MAX_REPLY) -> "list[Reply]":
    reader = ReplyReader(max_reply)
    replies = []
    for chunk in chunks:
        reader.feed(chunk)
        replies += reader.replies()
    return replies


# -- Requests


def test_a_request_is_an_array_of_four_in_minimal_encodings():
    data = Request("allow", ["api", "k", 1], takes_deadline=True).encode(7, 45000)
    assert data == bytes.fromhex(
        "94 00 07 a5 616c6c6f77 94 a3 617069 a1 6b 01 81 ab 646561646c696e655f7573 cd afc8"
    )


def test_a_method_without_options_sends_none():
    assert Request("peek", ["api", "k", 1]).encode(7, 45000) == msgpack.packb([0, 7, "peek", ["api", "k", 1]])
    assert Request("ping").encode(300, 1) == msgpack.packb([0, 300, "ping", []])


def test_an_inline_limit_is_a_map_and_a_bytes_key_a_bin():
    limit = {"name": "checkout", "rate": "100/s", "burst": 200}
    data = Request("allow", [limit, b"\xff", 2], takes_deadline=True).encode(1, 5)
    assert msgpack.unpackb(data) == [0, 1, "allow", [limit, b"\xff", 2, {"deadline_us": 5}]]


@pytest.mark.parametrize("key", ["\udcff", "\ud800", "a\x00b", "", "ключ"])
def test_every_string_may_be_a_key(key):
    data = Request("peek", ["api", key, 1]).encode(1, 5)
    assert msgpack.unpackb(data, unicode_errors="surrogatepass")[3][1] == key


def test_a_request_of_8_KiB_is_the_largest():
    overhead = len(Request("peek", ["api", "k" * 7000, 1]).encode(2**32 - 1, 1)) - 7000
    Request("peek", ["api", "k" * (8192 - overhead), 1])
    with pytest.raises(AgentError) as caught:
        Request("peek", ["api", "k" * (8193 - overhead), 1])
    assert caught.value.code == "too_large"


def test_what_MessagePack_cannot_hold_is_refused():
    with pytest.raises(ValueError):
        Request("peek", ["api", "k", 2**64])
    with pytest.raises(TypeError):
        Request("peek", [{"name": object()}, "k", 1])


def test_msgids_wrap_at_32_bits():
    assert next_msgid(0) == 1
    assert next_msgid(2**32 - 2) == 2**32 - 1
    assert next_msgid(2**32 - 1) == 0


# -- Replies


def test_a_reply_split_at_every_byte_is_read():
    data = reply_bytes(7, LIMITED)
    for at in range(1, len(data)):
        reader = ReplyReader(MAX_REPLY)
        reader.feed(data[:at])
        assert list(reader.replies()) == []
        assert reader.is_inside_a_reply()
        reader.feed(data[at:])
        assert list(reader.replies()) == [Reply(7, None, LIMITED)]
        assert not reader.is_inside_a_reply()


def test_a_reply_that_comes_byte_by_byte_is_read():
    data = reply_bytes(7, LIMITED)
    assert read_all(*[data[i : i + 1] for i in range(len(data))]) == [Reply(7, None, LIMITED)]


def test_two_replies_and_a_half_in_one_read():
    last = reply_bytes(9, None, "internal: x")
    assert read_all(reply_bytes(7) + reply_bytes(8, LIMITED) + last[:5], last[5:]) == [
        Reply(7, None, OK),
        Reply(8, None, LIMITED),
        Reply(9, "internal: x", None),
    ]


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xc1",
        b"HTTP/1.1 400 Bad Request\r\n",
        msgpack.packb("pong"),
        msgpack.packb([1, 7, None]),
        msgpack.packb([0, 7, "allow", []]),
        msgpack.packb([2, "event", []]),
        msgpack.packb([True, 7, None, OK]),
        msgpack.packb([1, True, None, OK]),
        msgpack.packb([1, -1, None, OK]),
        msgpack.packb([1, 2**32, None, OK]),
        msgpack.packb([1, "7", None, OK]),
        msgpack.packb({1: 7}),
        msgpack.packb([1, 7, None, {5: 5}]),
        b"\x91" * 60000,
        b"\xdd\xff\xff\xff\xff",
        b"\x94\x01\x07\xc0\xdd\x00\x01\x00\x00",
    ],
    ids=lambda garbage: garbage[:12].hex(),
)
def test_garbage_is_a_protocol_error_after_the_replies_before_it(garbage):
    reader = ReplyReader(MAX_REPLY)
    reader.feed(reply_bytes(6) + garbage)
    replies = reader.replies()
    assert next(replies) == Reply(6, None, OK)
    with pytest.raises(ProtocolError):
        next(replies)


def test_a_length_of_5_MB_is_not_waited_for():
    reader = ReplyReader(MAX_REPLY)
    reader.feed(b"\x94\x01\x07\xc0\xdb" + (5_000_000).to_bytes(4, "big"))
    with pytest.raises(ProtocolError):
        for _ in range(5_000_000 // 16384):
            assert list(reader.replies()) == []
            assert reader._fed < MAX_REPLY + 16384
            reader.feed(b"x" * 16384)


@pytest.mark.parametrize("cap", [MAX_REPLY, MAX_LARGE_REPLY])
def test_a_reply_may_have_exactly_its_cap(cap):
    overhead = len(reply_bytes(1, b"x" * (cap - 100))) - (cap - 100)

    def chunks(size):
        data = reply_bytes(1, b"x" * (size - overhead))
        assert len(data) == size
        return [data[i : i + READ_CHUNK] for i in range(0, size, READ_CHUNK)]

    assert len(read_all(*chunks(cap), max_reply=cap)) == 1
    with pytest.raises(ProtocolError):
        read_all(*chunks(cap + 1), max_reply=cap)


def test_an_array_of_many_is_fine_in_a_large_reply_alone():
    data = reply_bytes(1, [{"limit": "api"}] * 3000)
    assert len(data) < MAX_REPLY
    assert len(read_all(data, max_reply=MAX_LARGE_REPLY)[0].result) == 3000
    with pytest.raises(ProtocolError):
        read_all(data)


def test_elements_appended_to_a_message_are_passed_over():
    assert read_all(msgpack.packb([1, 7, None, OK, "later"])) == [Reply(7, None, OK)]


# -- Meanings


def test_a_decision_by_name():
    assert read_decision([False, 1, 2, 3, 4, "limited", "store", "day", 5, 6]) == Decision(
        allowed=False,
        limit=1,
        remaining=2,
        retry_after_us=3,
        reset_after_us=4,
        verdict="limited",
        source="store",
        tier="day",
        window_us=5,
        more_after_us=6,
        degraded=False,
    )


def test_what_a_newer_agent_adds_to_a_decision_is_opaque():
    decision = read_decision([True, 1, 2, 3, 4, "postponed", b"peer", "day", 5, 6, {"x": 1}, None])
    assert (decision.verdict, decision.source) == ("postponed", "peer")


@pytest.mark.parametrize("index", range(10))
@pytest.mark.parametrize("value", [None, 1.5, [], -2])
def test_a_field_of_another_type_is_a_protocol_error(index, value):
    fields = list(LIMITED)
    fields[index] = value
    with pytest.raises(ProtocolError):
        read_decision(fields)


@pytest.mark.parametrize(
    "result", [None, True, "ok", {}, [], LIMITED[:9], [1] + LIMITED[1:], [0, True] + LIMITED[2:]]
)
def test_another_shape_is_no_decision(result):
    with pytest.raises(ProtocolError):
        read_decision(result)


def test_durations_in_seconds():
    decision = read_decision([False, 10, 0, 1500000, 250000, "limited", "store", "", 60000000, 100000])
    assert decision.retry_after == 1.5
    assert decision.reset_after == 0.25
    assert decision.window == 60.0
    assert decision.more_after == 0.1


def test_never_has_no_seconds():
    never = read_decision([False, 10, 10, -1, 0, "never", "local", "", 1000000, 0])
    assert never.retry_after is None
    assert read_decision(OK).retry_after == 0.0


def test_a_decision_counts_as_allowed():
    assert read_decision(OK)
    assert not read_decision(LIMITED)


def test_a_decision_cannot_be_changed():
    with pytest.raises(AttributeError):
        read_decision(LIMITED).allowed = True


@pytest.mark.parametrize("code", ["bad_request", "unknown_method", "unknown_limit", "too_large", "forbidden"])
def test_the_callers_mistakes(code):
    error = read_error(f"{code}: why: it is so")
    assert type(error) is AgentError
    assert (error.code, error.text) == (code, "why: it is so")


@pytest.mark.parametrize("code", ["overloaded", "shutting_down", "internal", "code_of_tomorrow"])
def test_every_other_code_is_unavailability(code):
    error = read_error(f"{code}: why")
    assert type(error) is AgentUnavailable
    assert (error.code, error.text) == (code, "why")


def test_an_error_without_text_is_all_code():
    assert (read_error(b"internal").code, read_error("internal").text) == ("internal", "")


@pytest.mark.parametrize("error", [1, ["internal", "text"], {"code": 1}, False])
def test_an_error_that_is_no_string_is_a_protocol_error(error):
    with pytest.raises(ProtocolError):
        read_error(error)


def test_errors_survive_pickling():
    error = read_error("unknown_limit: none such")
    error.index = 3
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.code, copy.text, copy.index, str(copy)) == ("unknown_limit", "none such", 3, str(error))


def test_pong_and_maps():
    assert read_pong(b"pong") is True
    assert read_map({"version": "1"}) == {"version": "1"}
    for wrong in (None, "ping", []):
        with pytest.raises(ProtocolError):
            read_pong(wrong)
        with pytest.raises(ProtocolError):
            read_map(wrong)
