#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How many bytes a key takes in Redis, by the kind of its limit: a redis-server, an agent, MEMORY USAGE.

    ALLOWD_BIN_DIR=build/release/bin tests/bench/key_bytes.py [LENGTH OF KEYS]

The figures of "Floods of new keys" in OPERATING.md are from here.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from contextlib import ExitStack, redirect_stdout
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e"))

from daemon import Rack  # noqa: E402
from redis_server import RedisServer  # noqa: E402

_KEYS = 4096
_LIMITS = {
    "token bucket": 'rate = "10/h"',
    "two tiers": 'tiers = [ { name = "s", rate = "5/s" }, { name = "d", rate = "10/day", algorithm = "fixed_window" } ]',
    "fixed_window": 'rate = "10/h"\nalgorithm = "fixed_window"',
    "sliding_window": 'rate = "10/h"\nalgorithm = "sliding_window"',
    "sliding_log, 1 stamp": 'rate = "100/h"\nalgorithm = "sliding_log"',
    "sliding_log, 100 stamps": 'rate = "100/h"\nalgorithm = "sliding_log"',
    "counter": 'rate = "10/h"\nalgorithm = "counter"',
}


def main() -> None:
    length = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    tables = [f"[limits.api-{number}]\n{limit}\n" for number, limit in enumerate(_LIMITS.values())]
    with ExitStack() as cleanup:
        directory = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        redis = RedisServer(directory / "redis")
        cleanup.callback(redis.close)
        redis.start()
        rack = Rack(directory)
        cleanup.callback(_close, rack)
        agent = rack.start("\n".join(tables), agent='deadline = "5s"', redis=redis.config())
        client = cleanup.enter_context(agent.connect())
        print(f"# keys of {length} bytes, limits' names of 5: MEMORY USAGE, and used_memory's growth, a key")
        for number, name in enumerate(_LIMITS):
            redis.call("FLUSHALL")
            before = _used_memory(redis)
            count = 64 if "100" in name else _KEYS
            for index in range(count):
                for _ in range(100 if "100" in name else 1):
                    client.allow(f"api-{number}", f"{index:0{length}d}")
            keys = redis.keys()
            assert len(keys) == count, (name, len(keys))
            each = statistics.median(redis.call("MEMORY", "USAGE", key) for key in keys[:64])
            grown = (_used_memory(redis) - before) / count
            print(f"{name:24} {each:6.0f} {grown:6.0f}")


def _close(rack: Rack) -> None:
    with redirect_stdout(sys.stderr):  # it shows the agent's log
        rack.close()


def _used_memory(redis: RedisServer) -> int:
    lines = redis.call("INFO", "memory").decode().splitlines()
    return int(next(line.split(":")[1] for line in lines if line.startswith("used_memory:")))


if __name__ == "__main__":
    main()
