# SPDX-License-Identifier: MIT
"""How deep a MessagePack message nests, told from its beginning alone.

The decoder tells only of whole messages. Arrays that open and never close would keep a caller
waiting until its deadline, though no reply can come of them.
"""

from __future__ import annotations

from typing import List

# Bytes of the length that follows such a header, and bytes of type or value that follow besides.
_BLOBS = {
    0xC4: (1, 0), 0xC5: (2, 0), 0xC6: (4, 0),  # bin
    0xC7: (1, 1), 0xC8: (2, 1), 0xC9: (4, 1),  # ext
    0xD9: (1, 0), 0xDA: (2, 0), 0xDB: (4, 0),  # str
}  # fmt: skip
_FIXED = {
    0xCA: 4, 0xCB: 8,  # float
    0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8,  # int
    0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17,  # fixext
}  # fmt: skip
_CONTAINERS = {0xDC: (2, 1), 0xDD: (4, 1), 0xDE: (2, 2), 0xDF: (4, 2)}  # length bytes, values an item


def nests_deeper_than(levels: int, beginning: bytes) -> bool:
    """Whether the first message in ``beginning``, whole or not, opens more than ``levels`` containers in
    each other, itself included. Bytes that are no MessagePack count as nil."""
    missing: List[int] = []  # of each open container, the values that have not come
    at = 0
    while at < len(beginning):
        head = beginning[at]
        at += 1
        values = -1  # no container
        if 0x80 <= head <= 0x8F:
            values = 2 * (head & 0x0F)
        elif 0x90 <= head <= 0x9F:
            values = head & 0x0F
        elif 0xA0 <= head <= 0xBF:
            at += head & 0x1F
        elif head in _CONTAINERS:
            width, per_item = _CONTAINERS[head]
            values = per_item * int.from_bytes(beginning[at : at + width], "big")
            at += width
        elif head in _BLOBS:
            width, besides = _BLOBS[head]
            at += int.from_bytes(beginning[at : at + width], "big") + width + besides
        else:
            at += _FIXED.get(head, 0)

        if values >= 0:
            if len(missing) == levels:
                return True
            if values > 0:
                missing.append(values)
                continue
        while missing:
            missing[-1] -= 1
            if missing[-1]:
                break
            missing.pop()
        if not missing:
            return False
    return False
