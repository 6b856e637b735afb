# SPDX-License-Identifier: MIT
"""Again and again: starts, ends and connections leave nothing behind."""

from __future__ import annotations

import random
import time

from daemon import Agent, Rack
from processes import wait_until
from redis_server import RedisServer
from rpc import Client, request

LIMITS = '[limits.api]\nrate = "10/h"\non_failure = "deny"\ndeadline = "2s"\n'
MIB = 1024 * 1024


def idle_fds(agent: Agent) -> int:
    """Open descriptors while nobody is connected."""
    wait_until(lambda: agent.metric("connections") == 0, "everybody has left")
    readings: list[int] = []
    while len(readings) < 10 or len(set(readings[-10:])) > 1:  # whoever asked for the metric leaves, too
        readings.append(agent.open_fds())
        time.sleep(0.01)
    return readings[-1]


def check_that_fds_return_to(agent: Agent, before: int) -> None:
    wait_until(lambda: agent.open_fds() == before, f"descriptors are {before} again")


def test_twenty_quick_starts_and_ends_on_one_path(rack: Rack) -> None:
    path = rack.new_path(".sock")
    for _ in range(20):
        agent = rack.start(LIMITS, path=path)
        assert agent.allow("api", "k").remaining == 9, "memory starts anew"
        agent.stop()
        assert not path.exists()
    assert [entry.name for entry in rack.directory.glob(f"{path.stem}.*sock*")] != []
    assert all(entry.suffix == ".lock" for entry in rack.directory.glob(f"{path.stem}.*sock*"))


def test_twenty_crashes_and_starts_on_one_path(rack: Rack) -> None:
    path = rack.new_path(".sock")
    for _ in range(20):
        agent = rack.start(LIMITS, path=path)
        assert agent.ask("ping") == "pong"
        agent.kill()
    rack.start(LIMITS, path=path).stop()
    assert not path.exists()


def wait_until_it_says_so(agent: Agent) -> None:
    wait_until(lambda: "listens on" in agent.log(), "it has started")


def test_an_end_right_after_the_start_is_clean(rack: Rack) -> None:
    config = rack.write_config(LIMITS, path=(path := rack.new_path(".sock")))
    for _ in range(10):
        agent = rack.start_command(["--config", str(config)], path, wait=False)
        wait_until_it_says_so(agent)
        agent.stop()
        assert not path.exists()


def test_two_thousand_connections_leave_no_descriptor_and_no_memory(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    before = idle_fds(agent)
    dice = random.Random(7)
    whole = request("allow", "api", "soak")
    resident = 0
    for number in range(2000):
        with agent.connect() as client:
            how = dice.randrange(6)
            if how == 0:
                assert client.allow("api", "soak").source == "local"
            elif how == 1:
                client.send(whole[: dice.randrange(1, len(whole))])
            elif how == 2:
                client.send(whole[: dice.randrange(1, len(whole))])
                client.half_close()
            elif how == 3:
                client.send(whole * 20)
            elif how == 4:
                client.send(b"\xc1garbage")
        if number == 1000:
            resident = agent.resident_bytes()
    check_that_fds_return_to(agent, before)
    assert agent.metric("connections_accepted_total") >= 2000
    assert agent.resident_bytes() - resident < 16 * MIB


def test_hundreds_of_half_open_connections_leave_no_descriptor(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    before = idle_fds(agent)
    whole = request("allow", "api", "half")
    for _ in range(3):
        clients: list[Client] = []
        for number in range(400):
            client = agent.connect()
            client.send(whole[: 1 + number % (len(whole) - 1)])
            clients.append(client)
        wait_until(lambda: agent.metric("connections") == 400, "all are connected")
        assert agent.open_fds() >= before + 400
        for number, client in enumerate(clients):
            if number % 2:
                client.half_close()
                assert client.is_hung_up()
            client.close()
        check_that_fds_return_to(agent, before)


def test_admin_connections_leave_no_descriptor(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    before = idle_fds(agent)
    for _ in range(300):
        assert agent.admin("key api k").startswith("limit: ")
    check_that_fds_return_to(agent, before)


def test_reconnecting_to_redis_leaves_no_descriptor(rack: Rack, redis: RedisServer) -> None:
    agent = rack.start(LIMITS, redis=redis.config())
    agent.wait_for_redis()
    before = idle_fds(agent)
    for _ in range(5):
        redis.kill()
        wait_until(lambda: agent.ask("info")["degraded"], "it has noticed")
        assert agent.allow("api", "k").verdict == "unavailable"
        redis.start()
        agent.wait_for_redis()
        assert agent.allow("api", "k").source == "store"
    check_that_fds_return_to(agent, before)
