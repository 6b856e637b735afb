# SPDX-License-Identifier: MIT
"""Signing in: users and passwords, from URLs and files, on servers old and new; who is refused does not hammer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from daemon import ASK_ALWAYS, Agent, Rack
from fake_redis import FakeRedis, Peer, honest_answer, integers, questions_in
from processes import wait_until
from redis_server import RedisServer, needs, version

LIMITS = """
[limits.strict]
rate = "1000/h"
on_failure = "deny"
deadline = "5s"
"""

MakeRedis = Callable[..., RedisServer]


def start(rack: Rack, url: str, *lines: str) -> Agent:
    redis = "\n".join([f'url = "{url}"', 'reconnect_max = "250ms"', *lines])
    return rack.start(LIMITS, redis=redis + ASK_ALWAYS)


def url_of(redis: RedisServer, credentials: str = "") -> str:
    return f"redis://{credentials}127.0.0.1:{redis.port}"


def waits_long(agent: Agent) -> bool:
    """The next attempt is not due for a while; a refusal says so."""
    refused = agent.allow("strict", "k")
    assert refused.verdict == "unavailable"
    return 20_000_000 < refused.retry_after_us <= 60_000_000


# Who may


def test_a_user_with_a_password_signs_in_with_one_command(rack: Rack, redis: RedisServer) -> None:
    redis.call("ACL", "SETUSER", "limiter", "on", ">s3cr3t", "~*", "+@all")
    redis.call("ACL", "SETUSER", "default", "off")
    agent = start(rack, url_of(redis, "limiter:s3cr3t@"))
    agent.wait_for_redis()
    assert agent.allow("strict", "k").source == "store"
    with redis.client() as client:
        client.call("AUTH", "limiter", "s3cr3t")
        clients = client.call("CLIENT", "LIST").decode()
        stats = client.call("INFO", "commandstats").decode()
        client.call("ACL", "SETUSER", "default", "on")
    assert " name=allowd " in clients
    assert "user=limiter" in clients
    assert "cmdstat_hello" in stats
    assert "cmdstat_select" not in stats


def test_a_password_alone_is_the_default_users(rack: Rack, make_redis: MakeRedis) -> None:
    redis = make_redis(password="s3cr3t")
    redis.start()
    agent = start(rack, redis.url)
    agent.wait_for_redis()
    assert agent.allow("strict", "k").source == "store"


def test_a_server_that_does_not_know_hello_is_signed_in_to_as_of_old(rack: Rack, make_redis: MakeRedis) -> None:
    without = ["--rename-command", "HELLO", ""] if version() >= (6,) else []
    redis = make_redis(*without, password="s3cr3t")
    redis.start()
    for user in ("", "default"):
        agent = start(rack, url_of(redis, f"{user}:s3cr3t@") + "/3")
        agent.wait_for_redis()
        assert agent.allow("strict", "k").source == "store"
    with redis.client() as client:
        assert " name=allowd " in client.call("CLIENT", "LIST").decode()
        client.call("SELECT", 3)
        assert client.call("KEYS", "*strict*")


def test_redis_5_is_told_a_password_without_a_user(rack: Rack) -> None:
    commands: list[list[bytes]] = []

    def serve(peer: Peer) -> None:
        while True:
            command = peer.read_command()
            commands.append(command)
            if command[0] == b"HELLO":
                peer.send(b"-ERR unknown command `HELLO`, with args beginning with: `2`, `AUTH`, \r\n")
            elif command[0] == b"EVALSHA":
                peer.send(integers(*[0] * questions_in(command), 0))
            else:
                peer.send(honest_answer(command))

    with FakeRedis(serve) as server:
        agent = start(rack, f"redis://:s3cr3t@127.0.0.1:{server.port}")
        agent.wait_for_redis()
        agent.stop()
    assert commands[0][:2] == [b"HELLO", b"2"]
    assert commands[1] == [b"AUTH", b"s3cr3t"]
    assert commands[2] == [b"CLIENT", b"SETNAME", b"allowd"]


# Who may not


def test_a_wrong_password_is_logged_once_never_shown_and_not_tried_again_soon(
    rack: Rack, make_redis: MakeRedis
) -> None:
    redis = make_redis(password="right")
    redis.start()
    agent = start(rack, url_of(redis, ":s3cr3t@"))
    word = "WRONGPASS" if version() >= (6,) else "invalid password"
    wait_until(lambda: word in agent.log(), "it is logged")
    assert waits_long(agent)
    time.sleep(2)
    assert agent.metric("redis_connection_attempts_total") == 1
    assert agent.log().count(word) == 1, agent.log()
    assert "s3cr3t" not in agent.log()


def test_no_password_where_one_is_needed_is_not_tried_again_soon(rack: Rack, make_redis: MakeRedis) -> None:
    redis = make_redis(password="right")
    redis.start()
    agent = start(rack, url_of(redis))
    wait_until(lambda: "NOAUTH" in agent.log(), "it is logged")
    assert waits_long(agent)


def test_redis_5_that_refuses_a_password_is_not_asked_again_soon(rack: Rack) -> None:
    def serve(peer: Peer) -> None:
        while True:
            command = peer.read_command()
            peer.send(b"-ERR invalid password\r\n" if command[0] == b"AUTH" else b"-ERR unknown command\r\n")

    with FakeRedis(serve) as server:
        agent = start(rack, f"redis://:s3cr3t@127.0.0.1:{server.port}")
        wait_until(lambda: "invalid password" in agent.log(), "it is logged")
        assert waits_long(agent)
        agent.stop()


def test_the_log_names_the_permission_that_signing_in_lacks(rack: Rack, redis: RedisServer) -> None:
    needs(7)  # which can forbid a part of a command
    redis.call("ACL", "SETUSER", "limiter", "on", ">pw", "~*", "+@all", "-script|load")
    agent = start(rack, url_of(redis, "limiter:pw@"))
    wait_until(lambda: "NOPERM" in agent.log(), "it is logged")
    assert "script|load" in agent.log()
    assert waits_long(agent)


def test_a_server_that_is_loading_is_tried_again_soon(rack: Rack) -> None:
    def serve(peer: Peer) -> None:
        while True:
            command = peer.read_command()
            if command[0] == b"SCRIPT" and peer.number < 3:
                peer.send(b"-LOADING Redis is loading the dataset in memory\r\n")
            else:
                peer.send(honest_answer(command))

    with FakeRedis(serve) as server:
        agent = rack.start(LIMITS, redis=server.config)
        agent.wait_for_redis()
        assert server.connections == 4
        agent.stop()


# A password from a file


def test_a_password_is_read_from_its_file_at_each_connect(rack: Rack, make_redis: MakeRedis) -> None:
    redis = make_redis()
    redis.start()
    redis.call("ACL", "SETUSER", "limiter", "on", ">first", "~*", "+@all")
    file = rack.new_path(".password")
    file.write_text("first\n")
    agent = start(rack, url_of(redis, "limiter@"), f'password_file = "{file}"')
    agent.wait_for_redis()
    # Rotated: the new one works at the next connect, without a restart.
    redis.call("ACL", "SETUSER", "limiter", ">second", "<first")
    file.write_text("second")
    redis.call("CLIENT", "KILL", "USER", "limiter")
    wait_until(lambda: agent.metric("redis_connects_total") == 2, "it has connected anew")
    agent.wait_for_redis()
    assert agent.allow("strict", "k").source == "store"
    assert "second" not in agent.log()


def test_a_password_file_that_cannot_be_read_is_an_outage_with_a_reason(rack: Rack, make_redis: MakeRedis) -> None:
    redis = make_redis(password="s3cr3t")
    redis.start()
    file = rack.new_path(".password")
    agent = start(rack, url_of(redis), f'password_file = "{file}"')
    wait_until(lambda: f"the password file {file} cannot be read" in agent.log(), "it is logged")
    assert agent.allow("strict", "k").verdict == "unavailable"
    file.write_text("s3cr3t\n")
    agent.wait_for_redis()


def test_another_password_in_the_file_ends_the_long_wait(rack: Rack, make_redis: MakeRedis) -> None:
    redis = make_redis(password="second")
    redis.start()
    file = rack.new_path(".password")
    file.write_text("first\n")
    agent = start(rack, url_of(redis), f'password_file = "{file}"')
    wait_until(lambda: "for a person to change" in agent.log(), "it is logged")
    assert waits_long(agent)
    file.unlink()
    time.sleep(1.5)
    assert agent.metric("redis_connection_attempts_total") == 1, "a file that is not there says nothing new"
    file.write_text("second\n")
    agent.wait_for_redis()  # sooner than the shortest of such waits is over
    assert agent.metric("redis_connection_attempts_total") == 2
    assert "second" not in agent.log()


def test_a_password_file_beside_a_password_is_refused(rack: Rack) -> None:
    config = rack.write_config(redis='url = "redis://:pw@h"\npassword_file = "/f"')
    done = rack.run("check", "--config", config)
    assert done.returncode != 0
    assert "redis.password_file: cannot stand beside a URL's password" in done.stderr


# Connections that grow old


def test_an_old_connection_is_replaced_and_no_query_is_lost(rack: Rack, redis: RedisServer) -> None:
    agent = start(rack, redis.url, 'max_connection_age = "300ms"')
    agent.wait_for_redis()
    stop = threading.Event()
    answers: list[str] = []

    def ask() -> None:
        with agent.connect() as client:
            while not stop.is_set():
                answers.append(client.allow("strict", "k").source)

    asking = [threading.Thread(target=ask) for _ in range(2)]
    for thread in asking:
        thread.start()
    wait_until(lambda: agent.metric("redis_renewals_total") >= 5, "it was replaced several times")
    stop.set()
    for thread in asking:
        thread.join()
    assert len(answers) > 100
    assert set(answers) == {"store"}, "nothing was decided by on_failure"
    assert agent.metric("redis_questions_lost_total") == 0
    assert agent.metric("redis_connects_total") == 1, "it was never down"
    assert agent.log().count("connected") == 1, agent.log()
    wait_until(lambda: redis.call("INFO", "clients").decode().count("connected_clients:") == 1, "Redis answers")
    named = [line for line in redis.call("CLIENT", "LIST").decode().splitlines() if " name=allowd " in line]
    assert len(named) <= 3, "the one in use, one that is drained, one that is made ready"


def test_an_old_connection_is_kept_while_no_new_one_can_be_had(rack: Rack, make_redis: MakeRedis) -> None:
    redis = make_redis()
    redis.start()
    redis.call("ACL", "SETUSER", "limiter", "on", ">pw", "~*", "+@all")
    file = rack.new_path(".password")
    file.write_text("pw")
    agent = start(rack, url_of(redis, "limiter@"), f'password_file = "{file}"', 'max_connection_age = "300ms"')
    agent.wait_for_redis()
    file.write_text("wrong")
    wait_until(lambda: "is to be replaced and cannot be" in agent.log(), "it is logged")
    assert agent.allow("strict", "k").source == "store"
