# SPDX-License-Identifier: MIT
"""A server that runs scripts under a version of Lua of the test's choice, as far as the decision script needs one.

Keys live in a table of Python's. The scripts' world is that of Redis: no global may be made and none that is missing
asked for, and `struct` tells numbers as floats. Where servers differ it is stricter than any: what a script touches
must stand in KEYS, what it hands to a command must be text, what it writes must have a TTL, what it answers must be whole
numbers.

Threads    One per connection; scripts run one at a time.
"""

from __future__ import annotations

import hashlib
import importlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from fake_redis import FakeRedis, Peer, honest_answer, integers
from resp import encode

VERSIONS = ("5.1", "5.4")  # of Redis, Valkey and KeyDB; of Dragonfly

_GLOBALS = (
    b"_G", b"_VERSION", b"assert", b"coroutine", b"error", b"getmetatable", b"ipairs", b"math", b"next", b"pairs",
    b"pcall", b"rawequal", b"rawget", b"rawset", b"select", b"setmetatable", b"string", b"table", b"tonumber",
    b"tostring", b"type", b"unpack", b"xpcall",
)  # fmt: skip
_GUARD = b"""
local function refuse(_, name)
  error("script attempted to use the global variable '" .. tostring(name) .. "', which is not there", 2)
end
setmetatable(_G, {__index = refuse, __newindex = refuse})
"""
_STRUCT_ITEM = re.compile(rb"[< ]|B|I(\d+)")


class CommandError(Exception):
    """What a server would have answered to a command."""


class Keys:
    """Strings, each until its time is over."""

    def __init__(self) -> None:
        self._entries: dict[bytes, tuple[bytes, float | None]] = {}  # until when; None: for ever

    def names(self) -> list[bytes]:
        return [key for key in list(self._entries) if self.get(key) is not None]

    def get(self, key: bytes) -> bytes | None:
        value, until = self._entries.get(key, (None, None))
        return None if until is not None and until <= time.time() else value

    def set(self, key: bytes, value: bytes, seconds: float | None = None) -> None:
        """Without `seconds` its time stays as it was."""
        until = self._entries[key][1] if seconds is None and self.get(key) is not None else None
        if seconds is not None:
            if seconds <= 0:
                raise CommandError("ERR invalid expire time")
            until = time.time() + seconds
        self._entries[key] = (value, until)

    def milliseconds_left(self, key: bytes) -> int:
        """As PTTL tells them."""
        if self.get(key) is None:
            return -2
        until = self._entries[key][1]
        return -1 if until is None else int((until - time.time()) * 1000)

    def delete(self, key: bytes) -> int:
        was_there = self.get(key) is not None
        self._entries.pop(key, None)
        return int(was_there)


class Interpreter:
    """Runs scripts on `keys`."""

    def __init__(self, version: str, keys: Keys) -> None:
        lua = importlib.import_module(f"lupa.lua{version.replace('.', '')}")
        self._lua = lua.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._globals = self._lua.globals()
        assert self._globals[b"_VERSION"] == f"Lua {version}".encode()
        self._keys = keys
        self._named: frozenset[bytes] = frozenset()  # the keys of the call that runs
        self._scripts: dict[bytes, Callable[[], Any]] = {}
        self.runs = 0
        for name in list(self._globals):
            if name not in _GLOBALS:
                self._globals[name] = None
        self._globals[b"debug"] = False  # which lupa looks up where no error may be made of it
        self._globals[b"redis"] = self._lua.table_from({b"call": self._call, b"pcall": self._protected_call})
        self._globals[b"struct"] = self._lua.table_from({b"pack": _pack, b"unpack": _unpack})
        self._globals[b"KEYS"] = self._globals[b"ARGV"] = self._lua.table()
        self._lua.execute(_GUARD)

    def load(self, script: bytes) -> bytes:
        sha = hashlib.sha1(script).hexdigest().encode()
        self._scripts[sha] = self._lua.compile(script)
        return sha

    def run(self, sha: bytes, keys: Sequence[bytes], arguments: Sequence[bytes]) -> list[int]:
        self.runs += 1
        self._named = frozenset(keys)
        self._globals[b"KEYS"] = self._lua.table_from(keys)
        self._globals[b"ARGV"] = self._lua.table_from(arguments)
        answer = self._scripts[sha]()
        numbers = [answer[place] for place in range(1, len(answer) + 1)]
        for number in numbers:
            assert isinstance(number, (int, float)) and number == int(number), f"{number} is no whole number"
        for key in keys:
            assert self._keys.milliseconds_left(key) != -1, f"{key!r} has no TTL"
        return [int(number) for number in numbers]

    def _call(self, name: Any, *words: Any) -> Any:
        for word in (name, *words):
            assert isinstance(word, bytes), f"{name}: {word!r} is no text, and servers print numbers as they like"
        assert self._named.issuperset(words if name in (b"MGET", b"DEL") else words[:1]), f"{name}: not in KEYS"
        answer = self._command(name, words)
        if isinstance(answer, list):
            return self._lua.table_from([False if one is None else one for one in answer])
        if isinstance(answer, str):
            return self._lua.table_from({b"ok": answer.encode()})
        return False if answer is None else answer

    def _protected_call(self, *words: Any) -> Any:
        try:
            return self._call(*words)
        except CommandError as problem:
            return self._lua.table_from({b"err": str(problem).encode()})

    def _command(self, name: bytes, words: tuple[bytes, ...]) -> Any:
        """A number, a status as str, a bulk as bytes, a list, or nil."""
        keys = self._keys
        match name, words:
            case b"TIME", ():
                now = time.time_ns() // 1000
                return [b"%d" % (now // 1_000_000), b"%d" % (now % 1_000_000)]
            case b"MGET", _:
                return [keys.get(key) for key in words]
            case b"GET", (key,):
                return keys.get(key)
            case b"SET", (key, value, b"EX", seconds, b"NX"):
                if keys.get(key) is not None:
                    return None
                keys.set(key, value, _integer(seconds))
                return "OK"
            case b"SETEX", (key, seconds, value):
                keys.set(key, value, _integer(seconds))
                return "OK"
            case b"SETRANGE", (key, b"0", value):
                keys.set(key, value + (keys.get(key) or b"")[len(value) :])
                return len(keys.get(key) or b"")
            case b"INCRBY", (key, number):
                after = _integer(keys.get(key) or b"0") + _integer(number)
                keys.set(key, b"%d" % after)
                return after
            case b"PTTL", (key,):
                return keys.milliseconds_left(key)
            case b"EXPIRE" | b"PEXPIRE", (key, span):
                value = keys.get(key)
                if value is not None:
                    keys.set(key, value, _integer(span) / (1000 if name == b"PEXPIRE" else 1))
                return int(value is not None)
            case b"DEL", _:
                return sum(keys.delete(key) for key in words)
        raise AssertionError(f"{name!r} with {len(words)} words is not known here")


def _integer(text: bytes) -> int:
    if not re.fullmatch(rb"-?\d{1,19}", text):
        raise CommandError("ERR value is not an integer or out of range")
    return int(text)


def _sizes(layout: bytes) -> Iterator[int]:
    """Of the little-endian numbers that it names."""
    assert layout.startswith(b"<") or layout == b"B", layout
    at = 0
    while at < len(layout):
        item = _STRUCT_ITEM.match(layout, at)
        assert item, layout
        at = item.end()
        if item[0] not in (b"<", b" "):
            yield int(item[1] or 1)


def _pack(layout: bytes, *numbers: float) -> bytes:
    return b"".join(
        (int(number) % 256**size).to_bytes(size, "little") for size, number in zip(_sizes(layout), numbers, strict=True)
    )


def _unpack(layout: bytes, data: bytes, start: float = 1) -> tuple[float, ...]:
    """And where the next would begin."""
    at = int(start) - 1
    numbers: list[float] = []
    for size in _sizes(layout):
        assert at + size <= len(data), "data string too short"
        numbers.append(float(int.from_bytes(data[at : at + size], "little")))
        at += size
    return (*numbers, at + 1)


class LuaServer:
    """Speaks to agents and to `allowd replay`. Closing it fails if a script ever did what no server should see."""

    def __init__(self, version: str) -> None:
        self.keys = Keys()
        self._lua = Interpreter(version, self.keys)
        self._lock = threading.Lock()
        self._problems: list[str] = []
        self._server = FakeRedis(self._serve)

    def __enter__(self) -> LuaServer:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._server.close()
        assert not self._problems, self._problems

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._server.port}"

    @property
    def config(self) -> str:
        """The lines of an agent's [redis] table."""
        return self._server.config

    @property
    def runs(self) -> int:
        """How often a script ran."""
        return self._lua.runs

    def _serve(self, peer: Peer) -> None:
        while True:
            command = peer.read_command()
            with self._lock:
                try:
                    answer = self._answer(command)
                except Exception as problem:  # a CommandError, Lua's own error, or one of our assertions
                    self._problems.append(f"{command[0]!r}: {problem}")
                    answer = b"-ERR %s\r\n" % str(problem).replace("\n", " ").encode()
            peer.send(answer)

    def _answer(self, command: list[bytes]) -> bytes:
        match command:
            case [b"EVALSHA", sha, count, *rest]:
                keys = int(count)
                return integers(*self._lua.run(sha, rest[:keys], rest[keys:]))
            case [b"SCRIPT", b"LOAD", script]:
                sha = self._lua.load(script)
                return b"$%d\r\n%s\r\n" % (len(sha), sha)
            case [b"SCAN", *_]:
                return b"*2\r\n$1\r\n0\r\n" + encode(*self.keys.names())
            case [b"DEL", *keys]:
                return b":%d\r\n" % sum(self.keys.delete(key) for key in keys)
            case [b"HELLO" | b"CLIENT" | b"SELECT" | b"TIME", *_]:
                return honest_answer(command)
        return b"-ERR unknown command\r\n"
