# SPDX-License-Identifier: MIT
"""`allowd check`: the effective config, or what is wrong with it and where."""

from __future__ import annotations

import tomllib

import pytest

from daemon import Rack
from processes import wait_until

FULL = """
[agent]
socket = "/tmp/allowd-check.sock"
socket_mode = "0600"
socket_group = "daemon"
admin_socket = "/tmp/allowd-check.control"
max_connections = 17
max_keys = 1000
deadline = "1500us"
shadow = false

[redis]
url = "redis://user:s3cr3t@db.example:6380/3"
prefix = "mine"
reconnect_max = "750ms"
clock = "host"
max_connection_age = "90min"

[prefilter]
trust = "2s"
hold = "50ms"

[limits.api]
algorithm = "token_bucket"
rate = "1000/day"
burst = 5
on_failure = "deny"
deadline = "3ms"
shadow = false
scope = "host"
refund = true

[limits."quoted \\"name\\" \\\\ é"]
rate = "5/10s"
"""
SECRET = "s3cr3t"


def test_the_effective_config_is_printed_with_every_default(rack: Rack) -> None:
    config = rack.write_config('[limits.api]\nrate = "100/s"')
    done = rack.run("check", "--config", config)
    assert (done.returncode, done.stderr) == (0, "")
    assert tomllib.loads(done.stdout) == {
        "agent": {
            "socket_mode": "0660",
            "max_connections": 1024,
            "max_keys": 262_144,
            "deadline": "20ms",
            "shadow": False,
        },
        "prefilter": {"trust": "1s", "hold": "100ms"},
        "limits": {
            "api": {
                "algorithm": "token_bucket",
                "rate": "100/s",
                "burst": 100,
                "shadow": False,
                "scope": "global",
                "refund": False,
                "on_failure": "allow",
                "deadline": "20ms",
            }
        },
    }


def test_what_was_configured_is_what_is_printed_less_the_password(rack: Rack) -> None:
    config = rack.new_path(".toml")
    config.write_text(FULL)
    done = rack.run("check", "--config", config)
    assert (done.returncode, done.stderr) == (0, "")
    printed = tomllib.loads(done.stdout)
    expected = tomllib.loads(FULL)
    expected["redis"]["url"] = "redis://db.example:6380/3"
    expected["limits"]['quoted "name" \\ é'] |= {
        "algorithm": "token_bucket",
        "burst": 5,
        "shadow": False,
        "scope": "global",
        "refund": False,
        "on_failure": "allow",
        "deadline": "1500us",
    }
    assert printed == expected


def test_what_is_printed_is_a_config_that_prints_the_same(rack: Rack) -> None:
    config = rack.new_path(".toml")
    config.write_text(FULL)
    first = rack.run("check", "--config", config).stdout
    config.write_text(first)
    assert rack.run("check", "--config", config).stdout == first


def test_check_without_a_config_prints_the_defaults(rack: Rack) -> None:
    done = rack.run("check")
    assert done.returncode == 0
    assert tomllib.loads(done.stdout)["agent"]["max_keys"] == 262_144


def test_check_opens_no_socket(rack: Rack) -> None:
    path = rack.new_path(".sock")
    assert rack.run("check", "--config", rack.write_config(path=path)).returncode == 0
    assert list(path.parent.glob("*.sock*")) == []


@pytest.mark.parametrize(
    ("text", "line", "key", "reasons"),
    [
        ('[agent]\nsocket_mod = "0600"', 2, "agent.socket_mod", ["unknown key", "did you mean socket_mode?"]),
        ('[agnet]\nsocket = "/tmp/x"', 1, "agnet", ["unknown key", "did you mean agent?"]),
        ('[limits.api]\nrate = "1/s"\nbrust = 5', 3, "limits.api.brust", ["did you mean burst?"]),
        ("[limits.api]\nburst = 5", 1, "limits.api", ["rate is missing"]),
        ('[limits.api]\n\nrate = "10"', 3, "limits.api.rate", ["100/s"]),
        ('[limits.api]\nrate = "0/s"', 2, "limits.api.rate", ["at least 1"]),
        ('[limits.api]\nrate = "-1/s"', 2, "limits.api.rate", ["100/s"]),
        ('[limits.api]\nrate = "1/fortnight"', 2, "limits.api.rate", ["period"]),
        ('[limits.api]\nrate = "1/0s"', 2, "limits.api.rate", ["longer than 0"]),
        ('[limits.api]\nrate = "1 / s"', 2, "limits.api.rate", ["100/s"]),
        ('[limits.api]\nrate = "99999999999999999999/s"', 2, "limits.api.rate", ["100/s"]),
        ("[limits.api]\nrate = 10", 2, "limits.api.rate", ["must be a string"]),
        ('[limits.api]\nrate = "1/s"\nburst = 0', 3, "limits.api.burst", ["integer from 1"]),
        ('[limits.api]\nrate = "1/s"\nburst = "5"', 3, "limits.api.burst", ["integer from 1"]),
        ('[limits.api]\nrate = "1/day"\nburst = 1000000000000', 3, "limits.api.burst", ["too large"]),
        ('[limits.api]\nrate = "1/s"\non_failure = "maybe"', 3, "limits.api.on_failure", ['"deny" or "local"']),
        ('[limits.api]\nrate = "1/s"\nalgorithm = "gcra"', 3, "limits.api.algorithm", ['token_bucket']),
        ('[limits.api]\nrate = "1/s"\ndeadline = "20"', 3, "limits.api.deadline", ["needs a unit", "ms"]),
        ("[agent]\ndeadline = 20", 2, "agent.deadline", ["must be a string"]),
        ('[agent]\ndeadline = "0ms"', 2, "agent.deadline", ["longer than 0"]),
        ('[agent]\ndeadline = "500days"', 2, "agent.deadline", ["unit"]),
        ("[agent]\nsocket_mode = 432", 2, "agent.socket_mode", ["must be a string"]),
        ('[agent]\nsocket_mode = "0888"', 2, "agent.socket_mode", ["octal"]),
        ('[agent]\nsocket = ""', 2, "agent.socket", ["empty"]),
        ("[agent]\nmax_keys = 0", 2, "agent.max_keys", ["integer from 1"]),
        ("[agent]\nmax_connections = 1.5", 2, "agent.max_connections", ["integer from 1"]),
        ("agent = 5", 1, "agent", ["table"]),
        ("[limits]\napi = 5", 2, "limits.api", ["table"]),
        ('[redis]\nprefix = "x"', 1, "redis", ["url, shards, cluster or sentinel is missing"]),
        ('[redis]\nurl = "http://localhost"', 2, "redis.url", ["redis://", "unix://"]),
        ('[redis]\nurl = "redis://localhost:99999"', 2, "redis.url", ["port"]),
        ('[redis]\nurl = "redis://localhost/abc"', 2, "redis.url", ["database"]),
        ('[redis]\nurl = "unix://relative"', 2, "redis.url", ["absolute path"]),
        ('[redis]\nurl = "redis://localhost"\nprefix = "a:b"', 3, "redis.prefix", ["colons"]),
        ('[redis]\nurl = "redis://localhost"\nprefix = ""', 3, "redis.prefix", ["1 to 64"]),
        ('[redis]\nulr = "redis://localhost"', 2, "redis.ulr", ["did you mean url?"]),
    ],
)
def test_a_mistake_is_named_with_file_line_key_and_reason(
    rack: Rack, text: str, line: int, key: str, reasons: list[str]
) -> None:
    config = rack.new_path(".toml")
    config.write_text(text + "\n")
    done = rack.run("check", "--config", config)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"allowd: {config}:{line}: {key}: "), done.stderr
    for reason in reasons:
        assert reason in done.stderr
    assert done.stderr.count("\n") == 1
    served = rack.run("--config", config)
    assert served.returncode == 1, "nor does the daemon start with it"
    assert served.stderr == done.stderr


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[limits.api]\nrate = "1/s"\nrate = "2/s"', 3),
        ('[limits.api]\nrate = "1/s"\n[limits.api]\nrate = "2/s"', 3),
        ('[agent]\nsocket = "unclosed', 2),
        ("[agent\n", 1),
        ('[agent]\nsocket = "a"\nbroken', 3),
        ('[agent]\nsocket = "\\q"', 2),
    ],
)
def test_broken_toml_is_named_with_file_and_line(rack: Rack, text: str, line: int) -> None:
    config = rack.new_path(".toml")
    config.write_text(text)
    done = rack.run("check", "--config", config)
    assert done.returncode == 1
    assert done.stderr.startswith(f"allowd: {config}:{line}: "), done.stderr


def test_a_config_that_is_not_there_or_no_text_is_an_error(rack: Rack) -> None:
    missing = rack.new_path(".toml")
    done = rack.run("check", "--config", missing)
    assert (done.returncode, str(missing) in done.stderr) == (1, True)
    missing.write_bytes(b"\xff\xfe\x00[agent]\n" * 10)
    assert rack.run("check", "--config", missing).returncode == 1
    missing.unlink()
    missing.mkdir()
    assert rack.run("check", "--config", missing).returncode == 1


@pytest.mark.parametrize(
    "url",
    [
        f"redis://:{SECRET}@127.0.0.1:1",
        f"redis://user:{SECRET}@127.0.0.1:1/0",
        f"redis://user:{SECRET}@127.0.0.1:notaport",
        f"redis://user:{SECRET}@/0",
        f"redis://user:{SECRET}%zz@127.0.0.1",
        f"redis://user:{SECRET}@127.0.0.1/db",
        f"redis://user:{SECRET}@[::1",
        f"rediss://user:{SECRET}@127.0.0.1",
        f"reddis://user:{SECRET}@127.0.0.1",
        f"unix://:{SECRET}@/nowhere/redis.sock",
        f"unix://:{SECRET}@relative.sock",
        f"redis://{SECRET}:@127.0.0.1",
        f"{SECRET}",
    ],
)
def test_a_password_is_never_shown(rack: Rack, url: str) -> None:
    config = rack.write_config(redis=f'url = "{url}"')
    twice = rack.write_config(redis=f'url = "{url}"\nurl = "{url}"')
    unclosed = rack.write_config(redis=f'url = "{url}')
    for path in (config, twice, unclosed):
        done = rack.run("check", "--config", path)
        assert SECRET not in done.stdout + done.stderr
    limits = rack.write_config('[limits.api]\nrate = "1/s"')
    replayed = rack.run("replay", "--config", limits, "--limit", "api", "--store", url, text='{"t": 0, "key": "k"}\n')
    assert replayed.returncode != 0
    assert SECRET not in replayed.stdout + replayed.stderr


def test_a_password_is_in_no_log_and_no_report(rack: Rack) -> None:
    agent = rack.start('[limits.api]\nrate = "1/s"', redis=f'url = "redis://user:{SECRET}@127.0.0.1:1"')
    reports = [agent.admin(command) for command in ("info", "stats", "stats json", "stats prom", "limits")]
    reports += [repr(agent.ask("info")), repr(agent.ask("stats"))]
    wait_until(lambda: " down: " in agent.log(), "it has tried")
    agent.stop()
    for report in [*reports, agent.log()]:
        assert SECRET not in report


def test_help_and_version_are_printed(rack: Rack) -> None:
    version = rack.run("--version")
    assert (version.returncode, version.stdout.split()[0]) == (0, "allowd")
    usage = rack.run("--help")
    assert usage.returncode == 0
    for word in ("--config", "check", "replay", "allowctl"):
        assert word in usage.stdout


@pytest.mark.parametrize("arguments", [["--confg", "x"], ["chek"], ["--config"], ["check", "replay"], ["replay"]])
def test_a_wrong_command_line_is_refused(rack: Rack, arguments: list[str]) -> None:
    done = rack.run(*arguments)
    assert done.returncode != 0
    assert done.stderr
