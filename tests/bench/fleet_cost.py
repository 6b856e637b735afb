#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What idle agents cost a Redis: memory of their connections, CPU of their signing in and of what they send in the
background.

    tests/bench/fleet_cost.py [CONNECTIONS]

Opens connections as agents do and sends on them what agents send (see "Connections" in OPERATING.md, whose figures
are from here), then divides what Redis used by how often it was asked. Needs as many open files as connections.
"""

from __future__ import annotations

import itertools
import re
import resource
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "e2e"))

from redis_server import RedisServer  # noqa: E402
from resp import RedisClient  # noqa: E402

_AGENTS = 5000
_ROUNDS = 20
# Seconds between them, per agent: link.cc measures the clock by one TIME and up to three (which are reckoned with),
# server_watch.cc asks two INFOs, heartbeat.cc counts the agents and sweeps every third time.
_TIME_EVERY = 5 / 3
_INFO_EVERY = 60 / 2
_BEAT_EVERY = 10


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    script = _script()
    with ExitStack() as cleanup:
        directory = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        redis = RedisServer(directory / "redis", "--maxclients", str(count + 100))
        cleanup.callback(redis.close)
        redis.start()
        redis.call("SCRIPT", "LOAD", script)
        redis.call("INFO", "everything")
        memory, cpu = _memory(redis), _cpu(redis)
        clients = [cleanup.enter_context(RedisClient(redis.port)) for _ in range(count)]
        for client in clients:
            client.call("HELLO", 2, "SETNAME", "allowd")
            client.call("INFO", "server")
            client.call("SCRIPT", "LOAD", script)
        signing_in = (_cpu(redis) - cpu) / count
        print(f"# {count} connections; Redis's memory and CPU")
        print(f"a connection            {(_memory(redis) - memory) / count / 1024:8.1f} KiB")
        print(f"signing in              {signing_in * 1e6:8.1f} us")
        time_us = _each(redis, clients, lambda client: client.call("TIME"))
        info_us = _each(redis, clients, lambda client: client.call("INFO", "stats"))
        print(f"a TIME                  {time_us * 1e6:8.1f} us")
        print(f"an INFO of one section  {info_us * 1e6:8.1f} us")
        beats = itertools.count()
        beat_us = _each(redis, clients, lambda client: _beat(client, sweeps=next(beats) % 3 == 0))
        print(f"a heartbeat             {beat_us * 1e6:8.1f} us")
        share = _AGENTS * (time_us / _TIME_EVERY + info_us / _INFO_EVERY + beat_us / _BEAT_EVERY)
        print(f"{_AGENTS} idle agents        {share * 100:8.1f} % of one core")


def _beat(client: RedisClient, *, sweeps: bool) -> None:
    key, now = "allowd:{agents}", 1
    sweep = (("ZREMRANGEBYSCORE", key, "-inf", "(0"), ("ZREMRANGEBYSCORE", key, "(9", "+inf"))
    client.pipeline(
        ("ZADD", key, now, f"{id(client):032x}"),
        ("EXPIRE", key, 60),
        *(sweep if sweeps else ()),
        ("ZCOUNT", key, 0, 9),
    )


def _each(redis: RedisServer, clients: list[RedisClient], ask: Callable[[RedisClient], object]) -> float:
    before = _cpu(redis)
    for _ in range(_ROUNDS):
        for client in clients:
            ask(client)
    return (_cpu(redis) - before) / (_ROUNDS * len(clients))


def _script() -> str:
    """The agent's own, put together from the source as it stands."""
    codec = Path(__file__).resolve().parents[2] / "agent/store/redis/codec"
    parts = [
        part
        for name in ("script.cc", "bucket_script.cc", "tier_script.cc", "log_script.cc", "counter_script.cc")
        for part in re.findall(r'R"lua\((.*?)\)lua"', (codec / name).read_text(), re.DOTALL)
    ]
    # The second part of script.cc ends the script.
    return "\n".join([parts[0], *parts[2:], parts[1]])


def _memory(redis: RedisServer) -> int:
    return _number(redis, "memory", "used_memory")


def _cpu(redis: RedisServer) -> float:
    """Seconds, as the kernel counts them."""
    pid = _number(redis, "server", "process_id")
    fields = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(fields[0]) / 1e9


def _number(redis: RedisServer, section: str, name: str) -> int:
    lines = redis.call("INFO", section).decode().splitlines()
    return int(next(line.split(":")[1] for line in lines if line.startswith(name + ":")))


if __name__ == "__main__":
    main()
