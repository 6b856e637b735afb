# SPDX-License-Identifier: MIT
"""Redis over TLS: who is believed, who is not and why, and certificates that change while the agent runs."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from certificates import Authority, Certificate
from daemon import ASK_ALWAYS, Agent, Rack
from ports import free_port
from processes import wait_until
from redis_server import RedisServer, needs

MakeRedis = Callable[..., RedisServer]

LIMITS = """
[limits.api]
rate = "1000/h"
on_failure = "deny"
deadline = "5s"
"""
REFUSED = "down: TLS: certificate verify failed: "


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with ExitStack() as cleanup:
        yield Path(cleanup.enter_context(TemporaryDirectory(prefix="allowd-e2e-")))


@pytest.fixture(scope="module")
def authority(directory: Path) -> Authority:
    return Authority(directory)


@pytest.fixture(scope="module")
def stranger(directory: Path) -> Authority:
    return Authority(directory, "stranger")


@pytest.fixture(scope="module")
def trusted(authority: Authority) -> Certificate:
    """Of a server here."""
    return authority.issue()


class Secured:
    """A Redis with a port for TLS beside its plain one."""

    def __init__(self, make: MakeRedis, authority: Authority, certificate: Certificate, *options: str, **more: str):
        self.port = free_port()
        files = ["--tls-cert-file", certificate.cert, "--tls-key-file", certificate.key]
        ports = ["--tls-port", str(self.port), "--tls-ca-cert-file", str(authority.cert)]
        clients = [] if "--tls-auth-clients" in options else ["--tls-auth-clients", "no"]
        self.redis: RedisServer = make(*ports, *map(str, files), *clients, *options, **more)
        self.redis.start()

    def url(self, host: str = "127.0.0.1", credentials: str = "", path: str = "") -> str:
        return f"rediss://{credentials}{host}:{self.port}{path}"

    def show(self, certificate: Certificate) -> None:
        """From the next handshake on."""
        needs(7)  # which takes both files at once
        files = ["tls-cert-file", str(certificate.cert), "tls-key-file", str(certificate.key)]
        assert self.redis.call("CONFIG", "SET", *files) == "OK"

    def drop_clients(self) -> None:
        self.redis.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def lines(url: str, **tls: str | bool | Path) -> str:
    """Of an agent's [redis] and [redis.tls] tables."""
    values = {key: "false" if value is False else f'"{value}"' for key, value in tls.items()}
    table = "\n[redis.tls]\n" + "\n".join(f"{key} = {value}" for key, value in values.items()) if tls else ""
    return f'url = "{url}"\nreconnect_max = "250ms"\n{table}{ASK_ALWAYS}'


def is_up(agent: Agent) -> bool:
    return agent.ask("info")["degraded"] is False


def check_answers(agent: Agent) -> None:
    wait_until(lambda: is_up(agent), "it has found its server")
    assert agent.allow("api", "k")[:7:6] == (True, "store")


def check_refused(rack: Rack, redis: str, reason: str) -> None:
    """The agent lives, its queries are answered by policy, and the log says why."""
    agent = rack.start(LIMITS, redis=redis)
    wait_until(lambda: reason in agent.log(), reason)
    assert agent.log().count(" down: ") == 1, "once, though it goes on trying"
    assert agent.allow("api", "k")[:7:6] == (False, "fallback")
    assert agent.metric("redis_up") == 0


# Who is believed


def test_a_server_that_the_authority_vouches_for(
    rack: Rack, make_redis: MakeRedis, authority: Authority, trusted: Certificate
) -> None:
    server = Secured(make_redis, authority, trusted, password="s3cr3t")
    for host in ("127.0.0.1", "localhost"):
        url = server.url(host, credentials=":s3cr3t@", path="/3")
        agent = rack.start(LIMITS, redis=lines(url, ca_file=authority.cert))
        check_answers(agent)
        assert f"rediss://{host}:{server.port}/3 up" in agent.admin("shards")
        assert "s3cr3t" not in agent.log() + agent.admin("shards")
    with server.redis.client() as client:
        client.call("SELECT", 3)
        assert len(client.call("KEYS", "*:api:*")) == 1
        clients = client.call("CLIENT", "LIST").decode()
    assert clients.count(" name=allowd ") == 2


def test_much_at_once(rack: Rack, make_redis: MakeRedis, authority: Authority, trusted: Certificate) -> None:
    server = Secured(make_redis, authority, trusted)
    agent = rack.start(LIMITS, redis=lines(server.url(), ca_file=authority.cert))
    check_answers(agent)
    with agent.connect() as client:
        for turn in range(1, 4):
            items = [["api", f"{number}{'x' * 900}", 1] for number in range(4)]
            many = [["api", f"{number}", 1] for number in range(250)]
            decisions = client.ask("allow_many", items + many, "each")
            assert len(decisions) == 254
            assert {(allowed, remaining, source) for allowed, _, remaining, _, _, _, source, *_ in decisions} == {
                (True, 1000 - turn, "store")
            }


def test_with_the_systems_store(
    rack: Rack, make_redis: MakeRedis, authority: Authority, stranger: Authority, trusted: Certificate
) -> None:
    server = Secured(make_redis, authority, trusted)
    path = rack.new_path(".sock")
    config = rack.write_config(LIMITS, path=path, redis=lines(server.url()))
    trusting = rack.start_command(["--config", str(config)], path, {"SSL_CERT_FILE": str(authority.cert)})
    check_answers(trusting)
    trusting.stop()
    other = rack.start_command(["--config", str(config)], path, {"SSL_CERT_FILE": str(stranger.cert)})
    wait_until(lambda: REFUSED in other.log(), "its own store does not have that authority")


def test_an_authority_that_is_not_trusted(
    rack: Rack, make_redis: MakeRedis, authority: Authority, stranger: Authority, trusted: Certificate
) -> None:
    server = Secured(make_redis, authority, trusted)
    reason = REFUSED + "self-signed certificate in certificate chain"
    check_refused(rack, lines(server.url(), ca_file=stranger.cert), reason)
    assert server.redis.call("CLIENT", "LIST").decode().count(" name=allowd ") == 0


def test_an_expired_certificate(rack: Rack, make_redis: MakeRedis, authority: Authority) -> None:
    server = Secured(make_redis, authority, authority.issue(days=-1))
    check_refused(rack, lines(server.url(), ca_file=authority.cert), REFUSED + "certificate has expired")


def test_a_certificate_of_another_server(rack: Rack, make_redis: MakeRedis, authority: Authority) -> None:
    server = Secured(make_redis, authority, authority.issue("DNS:redis.test"))
    address, name = lines(server.url(), ca_file=authority.cert), lines(server.url("localhost"), ca_file=authority.cert)
    check_refused(rack, address, REFUSED + "IP address mismatch, expected 127.0.0.1")
    check_refused(rack, name, REFUSED + "hostname mismatch, expected localhost")
    wrong = lines(server.url(), ca_file=authority.cert, server_name="other.test")
    check_refused(rack, wrong, REFUSED + "hostname mismatch, expected other.test")
    check_answers(rack.start(LIMITS, redis=lines(server.url(), ca_file=authority.cert, server_name="redis.test")))


def test_without_verification_everything_works_and_is_warned_of_once(
    rack: Rack, make_redis: MakeRedis, authority: Authority, stranger: Authority
) -> None:
    server = Secured(make_redis, authority, stranger.issue("DNS:redis.test", days=-1))
    agent = rack.start(LIMITS, redis=lines(server.url(), verify=False))
    check_answers(agent)
    server.drop_clients()
    wait_until(lambda: agent.log().count("connected, clock") == 2, "it has connected anew")
    assert agent.log().count("any certificate is believed") == 1


def test_a_server_that_wants_a_certificate_of_the_agent(
    rack: Rack, make_redis: MakeRedis, authority: Authority, stranger: Authority, trusted: Certificate
) -> None:
    server = Secured(make_redis, authority, trusted, "--tls-auth-clients", "yes")
    own, foreign = authority.issue("DNS:agent.test"), stranger.issue("DNS:agent.test")
    ca = authority.cert
    check_answers(rack.start(LIMITS, redis=lines(server.url(), ca_file=ca, cert_file=own.cert, key_file=own.key)))
    check_refused(rack, lines(server.url(), ca_file=ca), "down: TLS: the server refuses: certificate required")
    wrong = lines(server.url(), ca_file=ca, cert_file=foreign.cert, key_file=foreign.key)
    check_refused(rack, wrong, "down: TLS: the server refuses: unknown ca")


# Ports that are not what they are taken for


def test_a_plain_port(rack: Rack, make_redis: MakeRedis, authority: Authority, trusted: Certificate) -> None:
    server = Secured(make_redis, authority, trusted)
    plain = lines(f"rediss://127.0.0.1:{server.redis.port}", ca_file=authority.cert)
    # Redis may take the handshake for a line that has not ended yet, or for a command that it does not know.
    agent = rack.start(LIMITS, redis=plain)
    wait_until(lambda: "down: TLS: " in agent.log(), "the reason")
    assert re.search("down: TLS: (no answer within two seconds|what the server says is not TLS); a port without", agent.log())
    assert agent.allow("api", "k")[:7:6] == (False, "fallback")


def test_a_port_for_tls_without_tls(
    rack: Rack, make_redis: MakeRedis, authority: Authority, trusted: Certificate
) -> None:
    server = Secured(make_redis, authority, trusted)
    check_refused(rack, lines(f"redis://127.0.0.1:{server.port}"), "before any answer; a port for TLS needs rediss://")


def test_a_server_that_says_nothing(rack: Rack, authority: Authority) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"rediss://127.0.0.1:{silent.getsockname()[1]}"
        check_refused(rack, lines(url, ca_file=authority.cert), "down: TLS: no answer within two seconds")


# Certificates that change


def test_a_new_certificate_of_the_server_and_a_new_authority(
    rack: Rack, make_redis: MakeRedis, authority: Authority, stranger: Authority, trusted: Certificate
) -> None:
    server = Secured(make_redis, authority, trusted)
    ca_file = rack.new_path(".pem")
    ca_file.write_text(authority.cert.read_text())
    agent = rack.start(LIMITS, redis=lines(server.url(), ca_file=ca_file))
    check_answers(agent)

    server.show(authority.issue())
    server.drop_clients()
    wait_until(lambda: agent.log().count("connected, clock") == 2, "a new certificate of the same authority is good")

    server.show(stranger.issue())
    server.drop_clients()
    wait_until(lambda: not is_up(agent), "the new authority is not known")
    check_refused(rack, lines(server.url(), ca_file=ca_file), REFUSED)
    assert not is_up(agent)
    ca_file.write_text(stranger.cert.read_text())
    check_answers(agent)


def test_files_that_cannot_be_read_for_a_while(
    rack: Rack, make_redis: MakeRedis, authority: Authority, trusted: Certificate
) -> None:
    server = Secured(make_redis, authority, trusted)
    ca_file = rack.new_path(".pem")
    ca_file.write_text(authority.cert.read_text())
    agent = rack.start(LIMITS, redis=lines(server.url(), ca_file=ca_file))
    check_answers(agent)
    ca_file.unlink()
    for connects in (2, 3):
        server.drop_clients()
        wait_until(lambda: agent.log().count("connected, clock") == connects, "what was read before is still good")
    warning = f"ca_file: {ca_file}: No such file or directory; what was read before stays in use"
    assert agent.log().count(warning) == 1
    ca_file.write_text(authority.cert.read_text())
    server.drop_clients()
    wait_until(lambda: "the files can be read again" in agent.log(), "the file is there again")
    check_answers(agent)


# Without a server


def test_files_are_checked_before_anything_starts(rack: Rack, authority: Authority, trusted: Certificate) -> None:
    here = "rediss://127.0.0.1:1"
    missing = rack.new_path(".pem")
    other = authority.issue()
    for redis, key, reason in [
        (lines(here, ca_file=missing), "ca_file", f"{missing}: No such file or directory"),
        (lines(here, ca_file=trusted.key), "ca_file", "holds no certificate in PEM form"),
        (lines(here, cert_file=trusted.cert, key_file=other.key, ca_file=authority.cert), "key_file", "is not the key"),
    ]:
        config = rack.write_config(LIMITS, redis=redis)
        for command in (["check"], []):
            done = rack.run(*command, "--config", config)
            assert done.returncode == 1
            assert f"{config}: redis.tls.{key}: " in done.stderr
            assert reason in done.stderr
    good = rack.write_config(LIMITS, redis=lines(here, ca_file=authority.cert))
    assert rack.run("check", "--config", good).returncode == 0


def test_replay_over_tls(
    rack: Rack, make_redis: MakeRedis, authority: Authority, stranger: Authority, trusted: Certificate
) -> None:
    server = Secured(make_redis, authority, trusted, password="s3cr3t")
    url = server.url(credentials=":s3cr3t@")
    history = "".join(json.dumps({"t": number * 1000, "key": f"k{number % 700}"}) + "\n" for number in range(1500))
    arguments = ["replay", "--limit", "api", "--store"]
    config = rack.write_config(LIMITS, redis=lines(url, ca_file=authority.cert))
    on_redis = rack.run(*arguments, url, "--config", config, text=history)
    in_memory = rack.run(*arguments, "memory", "--config", config, text=history)
    assert (on_redis.returncode, in_memory.returncode) == (0, 0), on_redis.stderr
    assert on_redis.stdout.replace('"store"', '"local"') == in_memory.stdout
    assert server.redis.keys() == []

    distrustful = rack.write_config(LIMITS, redis=lines(url, ca_file=stranger.cert))
    done = rack.run(*arguments, url, "--config", distrustful, text=history)
    assert done.returncode == 1
    assert "redis: TLS: certificate verify failed: self-signed certificate in certificate chain" in done.stderr
    assert "s3cr3t" not in done.stderr
