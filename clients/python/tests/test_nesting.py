# SPDX-License-Identifier: MIT
from __future__ import annotations

import msgpack
import pytest
from fake_agent import LIMITED, reply_bytes

from allowd import ProtocolError
from allowd.nesting import nests_deeper_than
from allowd.wire import MAX_REPLY, ReplyReader


def nested(levels: int, innermost: object = None) -> object:
    for _ in range(levels):
        innermost = [innermost]
    return innermost


EVERY_KIND = [
    None, True, 0, 127, 128, 2**16, 2**32, -1, -128, -2**15, -2**31, -2**63, 1.5,
    "", "s" * 31, "s" * 200, "s" * 300, "s" * 70000, b"", b"b" * 300, b"b" * 70000,
    msgpack.ExtType(1, b"1"), msgpack.ExtType(1, b"22"), msgpack.ExtType(1, b"4444"),
    msgpack.ExtType(1, b"8" * 8), msgpack.ExtType(1, b"6" * 16), msgpack.ExtType(1, b"x" * 300),
    msgpack.ExtType(1, b"x" * 200), msgpack.ExtType(1, b"x" * 70000),
    [], {}, [0] * 20, list(range(70000)), {str(n): n for n in range(20)}, {str(n): n for n in range(70000)},
]  # fmt: skip


@pytest.mark.parametrize(
    "value", EVERY_KIND, ids=lambda value: f"{type(value).__name__}-{len(msgpack.packb(value))}"
)
def test_every_kind_of_value_is_passed_over_at_its_length(value):
    # The array behind the value is at a known depth only if all of the value was passed over.
    data = msgpack.packb([value, nested(6)])
    assert not nests_deeper_than(7, data)
    assert nests_deeper_than(6, data)


def test_an_empty_container_is_a_level():
    assert not nests_deeper_than(3, msgpack.packb([[[]]]))
    assert nests_deeper_than(2, msgpack.packb([[[]]]))
    assert nests_deeper_than(2, msgpack.packb([{"a": {}}]))


def test_a_beginning_is_enough_and_only_the_first_message_counts():
    assert nests_deeper_than(8, b"\x91" * 9)
    assert not nests_deeper_than(8, b"\x91" * 8)
    assert not nests_deeper_than(8, msgpack.packb([1]) + b"\x91" * 100)
    assert not nests_deeper_than(8, b"")


def test_text_that_looks_like_arrays_is_text():
    assert not nests_deeper_than(8, b"\x92\xb0" + b"\x91" * 16)
    assert not nests_deeper_than(8, b"\x92\xdb\xff\xff\xff\xff" + b"\x91" * 100)


def test_a_reader_refuses_a_deep_reply_before_it_is_whole_however_it_comes():
    bomb = reply_bytes(7, LIMITED) + b"\x94\x01\x07\xc0" + b"\x91" * 7
    for size in (1, 2, 3, 5, len(bomb) - 1):
        reader = ReplyReader(MAX_REPLY)
        for at in range(0, len(bomb) - 1, size):
            reader.feed(bomb[at : min(at + size, len(bomb) - 1)])
            list(reader.replies())
        reader.feed(b"\x91\x91")
        with pytest.raises(ProtocolError, match="deeper"):
            list(reader.replies())


def test_a_reader_forgets_the_beginning_of_a_whole_reply():
    reader = ReplyReader(MAX_REPLY)
    data = reply_bytes(7, LIMITED)
    for _ in range(20):
        reader.feed(data[:9])
        assert list(reader.replies()) == []
        reader.feed(data[9:])
        assert len(list(reader.replies())) == 1
    assert reader._beginning == b""
