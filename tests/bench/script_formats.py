#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What storing a value costs Redis, in a script of 64 keys: its form, and overwriting it against setting it anew.

Prints Redis CPU per key (INFO cpu) for each, medians of interleaved rounds. The agent's script stores what it stores
because of this; see agent/store/redis/codec/bucket_script.cc.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path

sys.dont_write_bytecode = True

import wire  # noqa: E402
from servers import Stage  # noqa: E402

_KEYS_PER_SCRIPT = 64
_KEYS = 12_800
_ROUNDS = 7

_SCRIPT = """
local now, unit, refill, full, cost = unpack(ARGV)
now, unit, refill, full, cost = tonumber(now), tonumber(unit), tonumber(refill), tonumber(full), tonumber(cost)
local values, reply = redis.call('MGET', unpack(KEYS)), {}
for i = 1, #KEYS do
  local used, last, value = 0, now, values[i]
  if value then
    local u, l, s
    @READ@
    if l > now then last = l end
    if last - l < s / refill then used = s - (last - l) * refill end
  end
  if used + cost <= full then
    used = used + cost
    @WRITE@
  end
  reply[i] = used
end
return reply
"""

_SET = "redis.call('SETEX', KEYS[i], '61', @TEXT@)"
_FORMS = {
    "packed, overwritten": (
        "local _ _, u, l, s = struct.unpack('<BI7I7I7I5', value)",
        "struct.pack('<BI7I7I7I5', 1, unit, last, used, 1700000000)",
        "if value then redis.call('SETRANGE', KEYS[i], '0', @TEXT@) else " + _SET + " end",
    ),
    "packed, set": (
        "local _ _, u, l, s = struct.unpack('<BI7I7I7I5', value)",
        "struct.pack('<BI7I7I7I5', 1, unit, last, used, 1700000000)",
        _SET,
    ),
    "text, set": (
        "u, l, s = string.match(value, '^1 (%d+) (%d+) (%d+)$') u, l, s = tonumber(u), tonumber(l), tonumber(s)",
        "string.format('1 %.0f %.0f %.0f', unit, last, used)",
        _SET,
    ),
}


def _cpu_us_per_key(redis: wire.RedisClient, sha: str) -> float:
    before = redis.cpu_seconds()
    for start in range(0, _KEYS, _KEYS_PER_SCRIPT):
        keys = [f"allowd:{{5f1c}}:n3:api:user-{number}" for number in range(start, start + _KEYS_PER_SCRIPT)]
        now = str(1_700_000_000_000_000 + start)
        redis.call("EVALSHA", sha, str(len(keys)), *keys, now, "10000", "1", "2000000", "10000")
    return (redis.cpu_seconds() - before) / _KEYS * 1e6


def main() -> None:
    costs: dict[str, list[float]] = {form: [] for form in _FORMS}
    with Stage(Path()) as stage, wire.RedisClient(stage.start_redis()) as redis:
        shas = {
            form: redis.call(
                "SCRIPT", "LOAD", _SCRIPT.replace("@READ@", read).replace("@WRITE@", write).replace("@TEXT@", text)
            ).decode()
            for form, (read, text, write) in _FORMS.items()
        }
        for _ in range(_ROUNDS):
            for form, sha in shas.items():
                redis.call("FLUSHALL")
                _cpu_us_per_key(redis, sha)  # the keys exist from here on
                costs[form].append(_cpu_us_per_key(redis, sha))
    least = statistics.median(next(iter(costs.values())))
    for form, values in costs.items():
        cost = statistics.median(values)
        print(f"{form:<20} {cost:6.2f} us of Redis CPU per key ({min(values):.2f}-{max(values):.2f}), x {cost / least:.2f}")


if __name__ == "__main__":
    main()
