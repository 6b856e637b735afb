# SPDX-License-Identifier: MIT
"""What the agent tells about itself: `ping`, `info`, `stats`, and the admin socket."""

from __future__ import annotations

import json
import math
import re
import time
from contextlib import ExitStack

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from daemon import Agent, Rack
from processes import wait_until
from rpc import AdminClient, HungUp, Refused

LIMITS = r"""
[limits.api]
rate = "10/h"
on_failure = "deny"
deadline = "7ms"

[limits.'odd "name" \ {x="y"} é']
rate = "1/s"
burst = 3
"""
ODD = 'odd "name" \\ {x="y"} é'
QUOTED_ODD = r'"odd \"name\" \\ {x=\"y\"} \xc3\xa9"'
HOUR = 3_600_000_000  # µs
COMMANDS = ["help", "ping", "info", "stats", "top", "limits", "key", "reset", "shards", "reload"]


@pytest.fixture(scope="module")
def agent(shared_rack: Rack) -> Agent:
    return shared_rack.start(LIMITS)


def fields(answer: str) -> dict[str, str]:
    """An answer of `path: value` lines."""
    return dict(line.split(": ", 1) for line in answer.splitlines())


# On the application socket


def test_ping_is_answered_with_pong(agent: Agent) -> None:
    assert agent.ask("ping") == "pong"


def test_info_has_the_described_fields(agent: Agent) -> None:
    info = agent.ask("info")
    assert re.fullmatch(r"\d+\.\d+\.\d+", info["version"])
    assert info["protocol"] == 1
    assert info["features"] == ["plan", "force"]
    assert info["uptime_us"] > 0
    assert info["store"] == "memory"
    assert re.fullmatch(r"[0-9a-f]{16}", info["config_hash"])
    assert info["generation"] == 1
    assert info["degraded"] is False
    assert info["limits"] == {
        "api": {"on_failure": "deny", "shadow": False, "tiers": [["", 10, HOUR, "token_bucket"]]},
        ODD: {"on_failure": "allow", "shadow": False, "tiers": [["", 3, 3_000_000, "token_bucket"]]},
    }
    assert agent.ask("info")["uptime_us"] > info["uptime_us"]


def test_the_config_hash_says_whether_two_agents_have_the_same_limits(rack: Rack) -> None:
    path = rack.new_path(".sock")

    def hash_of(rate: str) -> str:
        agent = rack.start(f'[limits.api]\nrate = "{rate}"', path=path)
        digits = agent.ask("info")["config_hash"]
        agent.stop()
        return str(digits)

    first = hash_of("1/s")
    assert hash_of("2/s") != first
    assert hash_of("1/s") == first


def test_stats_has_counters_and_latencies(agent: Agent) -> None:
    agent.allow("api", "stats")
    stats = agent.ask("stats")
    assert set(stats["latency_us"]) == {"local"}, "of what decided anything"
    local = stats["latency_us"]["local"]
    assert local["count"] >= 1
    assert 0 <= local["p50"] <= local["p90"] <= local["p99"] <= local["p99_9"] <= local["max"] < 10_000_000
    assert stats["decisions"]["api"]["ok/local"] >= 1
    counters = {name: value for name, value in stats.items() if name not in ("decisions", "latency_us")}
    assert all(isinstance(value, (int, float)) and value >= 0 for value in counters.values())
    assert counters["connections"] == 1
    assert counters["memory_keys"] >= 1


def test_reading_stats_changes_only_what_reading_costs(agent: Agent) -> None:
    with agent.connect() as client:
        first, second = client.ask("stats"), client.ask("stats")
    assert second.pop("requests_total") == first.pop("requests_total") + 1
    assert second["loop_turns_total"] > first["loop_turns_total"], "the question was a turn"
    of_the_loop = {name for name in first if name.startswith("loop_")}
    assert of_the_loop == {name for name in second if name.startswith("loop_")}
    assert {name: first[name] for name in first.keys() - of_the_loop} == {
        name: second[name] for name in second.keys() - of_the_loop
    }


def test_a_report_over_a_megabyte_is_an_error_and_the_connection_goes_on(rack: Rack) -> None:
    names = [f"{number:04}{'n' * 124}" for number in range(6000)]
    agent = rack.start("\n".join(f'[limits.{name}]\nrate = "1/s"' for name in names))
    with agent.connect() as client:
        with pytest.raises(Refused, match="internal"):
            client.ask("info")
        assert client.ask("ping") == "pong"
    shown = fields(agent.admin("info"))
    assert all(f"limits.{name}.shadow" in shown for name in names), "the admin socket has it"


# On the admin socket


def test_each_answer_ends_with_an_empty_line_and_the_connection_stays_open(agent: Agent) -> None:
    with AdminClient(agent.admin_path) as admin:
        for _ in range(3):
            assert admin.ask("ping") == "pong\n"
        assert admin.ask("no such command").startswith("error: ")
        assert admin.ask("ping") == "pong\n"


def test_several_commands_in_one_write_are_each_answered_in_order(agent: Agent) -> None:
    with AdminClient(agent.admin_path) as admin:
        admin.send(b"ping\ninfo\nnope\nlimits\nping\n" * 20)
        for _ in range(20):
            assert admin.receive() == "pong\n"
            assert admin.receive().startswith("version: ")
            assert admin.receive().startswith("error: unknown_command: ")
            assert "api" in admin.receive()
            assert admin.receive() == "pong\n"


def test_a_command_may_arrive_in_pieces_and_end_with_crlf(agent: Agent) -> None:
    with AdminClient(agent.admin_path) as admin:
        for byte in b"  ping \r\n":
            admin.send(bytes([byte]))
        assert admin.receive() == "pong\n"


def test_no_answer_contains_an_empty_line(agent: Agent) -> None:
    with AdminClient(agent.admin_path) as admin:
        for command in ("help", "ping", "info", "stats", "stats json", "stats prom", "top", "limits", "key api k", "oops"):
            answer = admin.ask(command)
            assert answer.endswith("\n")
            assert all(line.strip() for line in answer.splitlines()), f"{command}: {answer!r}"
            admin.send(b"ping\n")
            assert admin.receive() == "pong\n", f"{command} left something behind"


def test_help_names_every_command(agent: Agent) -> None:
    lines = agent.admin("help").splitlines()
    assert [line.split()[0] for line in lines] == COMMANDS
    assert all(len(line.split()) >= 3 for line in lines), "each says what it is for"


def test_info_on_the_admin_socket_says_the_same_as_on_the_other(agent: Agent) -> None:
    shown = fields(agent.admin("info"))
    told = agent.ask("info")
    for name in ("version", "store", "config_hash"):
        assert shown[name] == told[name]
    assert shown["limits.api.on_failure"] == "deny"
    assert shown["degraded"] == "false"


def test_limits_lists_the_configured_limits_with_their_numbers(agent: Agent) -> None:
    header, *lines = agent.admin("limits").splitlines()
    assert header.startswith("# ")
    assert len(lines) == 2
    assert lines[0].split() == ['"api"', '""', *"token_bucket 10/h 10 1h no global deny 7ms 0 0".split()]
    assert lines[1].endswith(" 1/s 3 3s no global allow 20ms 0 0")


def test_key_shows_what_is_left_and_charges_nothing(agent: Agent) -> None:
    agent.allow("api", "shown", 4)
    for _ in range(2):
        shown = fields(agent.admin("key api shown"))
        assert shown["limit"] == '"api"'
        assert shown["key"] == '"shown"'
        assert (shown["verdict"], shown["source"]) == ("ok", "local")
        assert (shown["capacity"], shown["remaining"], shown["retry_after_us"]) == ("10", "6", "0")
    agent.allow("api", "shown", 6)
    assert fields(agent.admin("key api shown"))["verdict"] == "limited"
    assert agent.admin("key nobody k") == 'error: unknown_limit: no limit is named "nobody"\n'


@pytest.mark.parametrize(
    ("key", "typed", "printed"),
    [
        (b"plain-1", "plain-1", '"plain-1"'),
        (b"", '""', '""'),
        (b"two words", '"two words"', '"two words"'),
        (b'a"b\\c', r'"a\"b\\c"', r'"a\"b\\c"'),
        (b"\x00\n\xff", r'"\x00\x0a\xff"', r'"\x00\x0a\xff"'),
        (b"\x00\n\xff", r'"\x00\x0A\xFF"', r'"\x00\x0a\xff"'),
        ("é".encode(), '"é"', r'"\xc3\xa9"'),
        (b"\x7f\xc3\x28", r'"\x7f\xc3("', r'"\x7f\xc3("'),
        (b"half quoted", 'half" "quoted', '"half quoted"'),
    ],
)
def test_keys_of_any_bytes_are_typed_and_printed_quoted(rack: Rack, key: bytes, typed: str, printed: str) -> None:
    agent = rack.start(LIMITS)
    agent.allow("api", key, 3)
    shown = fields(agent.admin(f"key api {typed}"))
    assert shown["remaining"] == "7", "it is the same key"
    assert shown["key"] == printed


def test_the_printed_form_can_be_typed_again(agent: Agent) -> None:
    key = bytes(range(256))
    agent.allow("api", key, 3)
    typed = '"' + "".join(f"\\x{byte:02x}" for byte in key) + '"'
    printed = fields(agent.admin(f"key api {typed}"))["key"]
    assert fields(agent.admin(f"key api {printed}"))["remaining"] == "7"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("", "bad_request"),
        ("   ", "bad_request"),
        ("PING", "unknown_command"),
        ("allow api k", "unknown_command"),
        ("\x01\x02", "unknown_command"),
        ("ping now", "bad_request"),
        ("stats xml", "bad_request"),
        ("stats json prom", "bad_request"),
        ("key", "bad_request"),
        ("key api", "bad_request"),
        ("key api a b", "bad_request"),
        ('key api "open', "bad_request"),
        (r'key api "\q"', "bad_request"),
        (r'key api "\x4"', "bad_request"),
        (r'key api "\xg0"', "bad_request"),
        ("key api " + "k" * 1025, "too_large"),
        ("key nobody k", "unknown_limit"),
    ],
)
def test_a_command_that_fails_answers_one_line_with_a_code(agent: Agent, line: str, code: str) -> None:
    with AdminClient(agent.admin_path) as admin:
        answer = admin.ask(line)
        assert answer.startswith(f"error: {code}: "), answer
        assert answer.count("\n") == 1
        assert answer.removesuffix("\n").isprintable()
        assert admin.ask("ping") == "pong\n"


def test_a_line_without_end_is_refused_and_its_connection_closed(agent: Agent) -> None:
    with AdminClient(agent.admin_path) as admin:
        admin.send(b"k" * 20_000)
        assert admin.receive().startswith("error: too_large: ")
        with pytest.raises((HungUp, ConnectionError)):
            admin.receive()
    assert agent.admin("ping") == "pong\n"


def test_the_admin_socket_serves_only_so_many_and_then_the_next(agent: Agent) -> None:
    clients = [AdminClient(agent.admin_path) for _ in range(40)]
    for client in clients[:32]:
        assert client.ask("ping") == "pong\n"
    for client in clients[:32]:
        client.socket.close()
    for client in clients[32:]:
        assert client.ask("ping") == "pong\n"
        client.socket.close()


def test_an_answer_of_many_megabytes_comes_whole(rack: Rack) -> None:
    many = 12_000
    agent = rack.start("".join(f'[limits.{"n" * 100}-{number}]\nrate = "1/s"\n' for number in range(many)))
    with AdminClient(agent.admin_path, timeout=30) as admin:
        admin.send(b"limits\nstats prom\nping\n")
        limits, stats, pong = admin.receive(), admin.receive(), admin.receive()
    assert len(limits.splitlines()) == many + 1
    assert len(stats) > 4 * 1024 * 1024, "more than any other connection may have unread"
    assert stats.count("allowd_decisions_total{") == 4 * many
    assert pong == "pong\n"


def test_forgotten_clients_do_not_hold_the_admin_socket(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    with ExitStack() as stack:
        idle = [stack.enter_context(AdminClient(agent.admin_path)) for _ in range(32)]
        assert [client.ask("ping") for client in idle] == ["pong\n"] * 32
        time.sleep(1)  # of silence
        assert agent.admin("ping") == "pong\n"
        with pytest.raises(HungUp):
            idle[0].receive()
        assert [client.ask("ping") for client in idle[1:]] == ["pong\n"] * 31


# Statistics as text, JSON and for Prometheus


def charge_something(agent: Agent) -> None:
    with agent.connect() as client:
        for _ in range(12):
            client.allow("api", "tenant-4711")
        client.allow(ODD, "tenant-4711")
        client.allow({"name": "inline-4712", "rate": "1/h"}, "tenant-4711")


def as_in_stats(families: dict[str, Metric]) -> dict[str, dict[str, float]]:
    """Prometheus's samples of decisions, in the form of `stats`."""
    decisions: dict[str, dict[str, float]] = {}
    for sample in families["allowd_decisions"].samples:
        path = sample.labels["limit"] + ("/" + sample.labels["tier"] if sample.labels["tier"] else "")
        if sample.value > 0:  # series that are worth an alert exist from the start
            decisions.setdefault(path, {})[sample.labels["verdict"] + "/" + sample.labels["source"]] = sample.value
    return decisions


def test_all_forms_of_stats_agree(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    charge_something(agent)
    told = agent.ask("stats")["decisions"]
    assert told == {
        "api": {"ok/local": 10, "limited/local": 2},
        QUOTED_ODD: {"ok/local": 1},
        "inline": {"ok/local": 1},
    }
    assert json.loads(agent.admin("stats json"))["decisions"] == told
    families = {family.name: family for family in text_string_to_metric_families(agent.admin("stats prom"))}
    assert as_in_stats(families) == {ODD if name == QUOTED_ODD else name: counts for name, counts in told.items()}
    text = agent.admin("stats")
    assert "decisions api ok local 10\n" in text
    assert f"decisions {QUOTED_ODD} ok local 1\n" in text


def test_prometheus_can_read_its_form(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    charge_something(agent)
    text = agent.admin("stats prom")
    families = list(text_string_to_metric_families(text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "each family stands once"
    for family in families:
        assert family.name.startswith("allowd_")
        assert family.documentation, f"{family.name} says what it is"
        assert family.type in ("counter", "gauge", "histogram"), f"{family.name} has no type"
        assert family.samples, f"{family.name} has no sample"
        for sample in family.samples:
            assert sample.timestamp is None, "the textfile collector takes no timestamps"
            if family.type == "counter":
                assert sample.name.endswith("_total")
                assert sample.value >= 0
    # One block per family: HELP and TYPE first, then its samples.
    headed = re.findall(r"^# HELP (\S+)", text, re.MULTILINE)
    assert headed == re.findall(r"^# TYPE (\S+)", text, re.MULTILINE)
    assert len(headed) == len(set(headed))
    by_name = {family.name: family for family in families}
    assert by_name["allowd_build_info"].samples[0].value == 1
    assert by_name["allowd_connections_accepted"].samples[0].value >= 1


def test_the_latency_histogram_is_cumulative_and_adds_up(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    charge_something(agent)
    families = {family.name: family for family in text_string_to_metric_families(agent.admin("stats prom"))}
    samples = families["allowd_decision_seconds"].samples
    for source, expected in (("local", 14), ("store", 0), ("fallback", 0)):
        mine = [sample for sample in samples if sample.labels["source"] == source]
        buckets = [(float(s.labels["le"]), s.value) for s in mine if s.name.endswith("_bucket")]
        assert buckets == sorted(buckets), "edges and counts rise together"
        assert math.isinf(buckets[-1][0])
        (count,) = (s.value for s in mine if s.name.endswith("_count"))
        (total,) = (s.value for s in mine if s.name.endswith("_sum"))
        assert buckets[-1][1] == count == expected
        assert 0 <= total < 60


def test_no_report_contains_a_key_or_an_inline_name(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    charge_something(agent)
    reports = [agent.admin(command) for command in ("stats", "stats json", "stats prom", "info", "limits")]
    reports += [repr(agent.ask("stats")), repr(agent.ask("info")), agent.log()]
    for report in reports:
        assert "4711" not in report
        assert "4712" not in report


def test_counters_count_what_happened(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    with agent.connect() as client:
        started = client.ask("stats")
        for _ in range(5):
            client.ask("ping")
        client.post("nope")
        client.receive()
        now = client.ask("stats")
    assert now["requests_total"] - started["requests_total"] == 7
    assert now["requests_refused_total"] - started["requests_refused_total"] == 1
    assert now["connections"] == 1
    wait_until(lambda: agent.metric("connections") == 0, "a client that left is not counted")
    assert agent.metric("connections_accepted_total") >= 2


def test_all_control_characters_in_a_limit_name_are_refused_by_the_config(rack: Rack) -> None:
    # They would break the lines of every report.
    for escape in (r"\n", r"\u0000", r"\u007F", r"\t"):
        config = rack.write_config(f'[limits."a{escape}b"]\nrate = "1/s"')
        assert rack.run("check", "--config", config).returncode != 0, escape
