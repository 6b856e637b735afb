# SPDX-License-Identifier: MIT
"""`allowd replay`: worked histories, to the microsecond, on memory and on a real Redis."""

from __future__ import annotations

import contextlib
import json
import re
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from daemon import Rack, program
from redis_server import RedisServer

_CASES = Path(__file__).resolve().parents[1] / "cases" / "limits.jsonl"
API = '[limits.api]\nrate = "10/s"\nburst = 5'

Case = dict[str, Any]


def is_plain_bucket(limit: dict[str, Any]) -> bool:
    return "tiers" not in limit and limit.get("algorithm", "token_bucket") == "token_bucket"


def cases() -> list[Case]:
    """The histories of token buckets without tiers."""
    every = [json.loads(line) for line in _CASES.read_text().splitlines() if line.strip()]
    return [case for case in every if is_plain_bucket(case["limit"])]


def toml_table(limit: dict[str, Any]) -> str:
    return "\n".join(f"{name} = {json.dumps(value)}" for name, value in limit.items())


def query_of(step: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in step.items() if name != "expect"}


def replay(rack: Rack, limits: str, lines: list[Any], store: str = "") -> subprocess.CompletedProcess[str]:
    """Runs these lines (objects, or text as it stands) through the limit `api`."""
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    chosen = ["--store", store] if store else []
    config = rack.write_config(limits)
    return rack.run("replay", "--config", config, "--limit", "api", *chosen, text=text)


def answers_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    assert re.match(r"\d+ lines: \d+ allowed, \d+ limited, \d+ never\n", done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_case(case: Case, answers: list[dict[str, Any]], source: str) -> None:
    assert len(answers) == len(case["steps"]), "every line is written back"
    for number, (step, answer) in enumerate(zip(case["steps"], answers, strict=True), 1):
        query = query_of(step)
        assert query.items() <= answer.items(), f"step {number}: a line comes back as it was, with fields added"
        if step["op"] == "limit":
            assert answer == query
            continue
        expected = step["expect"]
        assert {name: answer.get(name) for name in expected} == expected, f"step {number} of {case['id']}"
        assert answer["source"] == source
        added = answer.keys() - query.keys()
        assert added == {
            "allowed", "limit", "remaining", "retry_after_us", "reset_after_us", "verdict", "source", "tier",
            "window_us", "more_after_us",
        }  # fmt: skip


def test_the_copied_histories_are_all_there() -> None:
    assert len(cases()) >= 24
    assert sum(len(case["steps"]) for case in cases()) >= 100


@pytest.mark.parametrize("case", cases(), ids=lambda case: str(case["id"]))
def test_a_worked_history_comes_out_right_on_memory(rack: Rack, case: Case) -> None:
    limits = "[limits.api]\n" + toml_table(case["limit"])
    check_case(case, answers_of(replay(rack, limits, [query_of(step) for step in case["steps"]])), "local")


@pytest.mark.parametrize("case", cases(), ids=lambda case: str(case["id"]))
def test_a_worked_history_comes_out_right_on_redis(rack: Rack, shared_redis: RedisServer, case: Case) -> None:
    limits = "[limits.api]\n" + toml_table(case["limit"])
    lines = [query_of(step) for step in case["steps"]]
    check_case(case, answers_of(replay(rack, limits, lines, shared_redis.url)), "store")
    assert shared_redis.keys() == [], "what a replay wrote it takes away again"


def random_history(seed: int) -> list[dict[str, Any]]:
    """Queries of every kind at times that mostly rise, about few keys, under definitions that change."""
    dice = random.Random(seed)
    now = 1_700_000_000_000_000
    steps: list[dict[str, Any]] = []
    for _ in range(400):
        now += dice.choice([0, 0, 1, 7, 999, 33_333, 1_000_000, -1, -50_000])
        if dice.random() < 0.03:
            rate = f"{dice.choice([1, 3, 10, 97, 1000])}/{dice.choice(['s', '7s', 'min', '333ms', 'day'])}"
            steps.append({"op": "limit", "limit": {"rate": rate, "burst": dice.choice([1, 5, 30])}})
            continue
        op = dice.choices(["allow", "peek", "refund", "force"], [6, 2, 1, 1])[0]
        steps.append({"t": now, "key": dice.choice(["a", "b", "é", ""]), "cost": dice.choice([0, 1, 1, 2, 5, 31]),
                      "op": op})  # fmt: skip
    return steps


@pytest.mark.parametrize("seed", range(8))
def test_memory_and_redis_answer_every_history_alike(rack: Rack, shared_redis: RedisServer, seed: int) -> None:
    history = random_history(seed)
    on_memory = answers_of(replay(rack, API, history))
    on_redis = answers_of(replay(rack, API, history, shared_redis.url))
    for number, (memory, redis) in enumerate(zip(on_memory, on_redis, strict=True), 1):
        assert memory | {"source": ""} == redis | {"source": ""}, f"step {number}"
    assert shared_redis.keys() == []


REFUNDS_OF_NOTHING: dict[str, list[Any]] = {
    "and the clock steps back": [
        {"t": 8_000_000, "key": "k", "cost": 5},
        {"t": 9_000_000, "key": "k", "cost": 5, "op": "refund"},
        {"t": 8_950_000, "key": "k", "cost": 1},
        {"t": 8_951_000, "key": "k", "cost": 5, "op": "peek"},
    ],
    "and the limit changes": [
        {"t": 8_000_000, "key": "k", "cost": 1},
        {"t": 9_000_000, "key": "k", "cost": 1, "op": "refund"},
        {"op": "limit", "limit": {"rate": "10/day", "burst": 1}},
        {"t": 9_000_000, "key": "k", "cost": 1, "op": "peek"},
    ],
}


@pytest.mark.parametrize("name", REFUNDS_OF_NOTHING)
def test_a_refund_to_a_bucket_that_is_full_again_means_the_same_on_every_store(
    rack: Rack, shared_redis: RedisServer, name: str
) -> None:
    history = REFUNDS_OF_NOTHING[name]
    on_memory = answers_of(replay(rack, API, history))
    on_redis = answers_of(replay(rack, API, history, shared_redis.url))
    assert on_memory[-1] | {"source": ""} == on_redis[-1] | {"source": ""}


def test_fields_may_be_left_out_and_others_come_back(rack: Rack) -> None:
    first, second = answers_of(replay(rack, API, [{"t": 0, "key": "k"}, {"t": 0, "key": "k", "note": {"a": [1]}}]))
    assert (first["remaining"], first["source"]) == (4, "local")
    assert (second["remaining"], second["note"]) == (3, {"a": [1]})
    assert "cost" not in first


def test_empty_lines_are_passed_over_but_counted(rack: Rack) -> None:
    done = replay(rack, API, ["", "  ", {"t": 0, "key": "k"}, "\r", "oops"])
    assert done.returncode == 1
    assert "line 5: " in done.stderr
    assert len(done.stdout.splitlines()) == 1


MALFORMED = {
    "no JSON": "nonsense",
    "an array": "[1, 2]",
    "a number": "7",
    "half an object": '{"t": 0, "key": "k"',
    "no time": '{"key": "k"}',
    "text as time": '{"t": "0", "key": "k"}',
    "a negative time": '{"t": -1, "key": "k"}',
    "a fraction as time": '{"t": 0.5, "key": "k"}',
    "a time beyond 2^53": '{"t": 9007199254740993, "key": "k"}',
    "a time beyond 64 bits": '{"t": 99999999999999999999, "key": "k"}',
    "no key": '{"t": 0}',
    "a number as key": '{"t": 0, "key": 1}',
    "a key over 1024 bytes": json.dumps({"t": 0, "key": "k" * 1025}),
    "a negative cost": '{"t": 0, "key": "k", "cost": -1}',
    "a fraction as cost": '{"t": 0, "key": "k", "cost": 1.5}',
    "a cost beyond 64 bits": '{"t": 0, "key": "k", "cost": 99999999999999999999}',
    "an unknown op": '{"t": 0, "key": "k", "op": "take"}',
    "a number as op": '{"t": 0, "key": "k", "op": 1}',
    "a limit without table": '{"op": "limit"}',
    "a limit with a wrong rate": '{"op": "limit", "limit": {"rate": "10"}}',
    "a limit with an unknown key": '{"op": "limit", "limit": {"rate": "1/s", "brust": 1}}',
    "deep nesting": '{"t": 0, "key": ' + "[" * 100_000,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_line_ends_the_replay_and_names_its_number(rack: Rack, name: str) -> None:
    good = {"t": 0, "key": "k"}
    done = replay(rack, API, [good, good, MALFORMED[name], good])
    assert done.returncode == 1
    assert done.stderr.startswith("allowd: line 3: "), done.stderr
    assert len(done.stdout.splitlines()) == 2, "what came before was answered"


def test_a_replay_that_fails_on_redis_leaves_no_keys_either(rack: Rack, shared_redis: RedisServer) -> None:
    good = {"t": 1_700_000_000_000_000, "key": "k"}
    done = replay(rack, API, [good, "oops"], shared_redis.url)
    assert done.returncode == 1
    assert done.stderr.startswith("allowd: line 2: ")
    assert shared_redis.keys() == []


def test_replays_at_the_same_time_do_not_meet(rack: Rack, shared_redis: RedisServer) -> None:
    shared_redis.call("SET", "allowd:mine", "untouched")
    history = [{"t": 1_700_000_000_000_000, "key": "k"}] * 5
    for _ in range(2):
        assert all(answer["allowed"] for answer in answers_of(replay(rack, API, history, shared_redis.url)))
    assert shared_redis.keys() == [b"allowd:mine"]
    shared_redis.call("DEL", "allowd:mine")


def test_an_unknown_limit_and_an_unreachable_store_are_clear_errors(rack: Rack) -> None:
    config = rack.write_config(API)
    done = rack.run("replay", "--config", config, "--limit", "nobody")
    assert done.returncode == 1 and "nobody" in done.stderr
    done = rack.run("replay", "--config", config, "--limit", "api", "--store", "redis://127.0.0.1:1")
    assert done.returncode == 1 and "redis: " in done.stderr
    done = rack.run("replay", "--config", config, "--limit", "api", "--store", "sqlite")
    assert done.returncode == 1 and "--store" in done.stderr


def test_a_password_and_a_database_in_the_url_are_used(rack: Rack, make_redis: Any) -> None:
    redis = make_redis(password="pa55")
    redis.start()
    answers_of(replay(rack, API, [{"t": 0, "key": "k"}], f"{redis.url}/2"))
    refused = replay(rack, API, [{"t": 0, "key": "k"}], f"redis://127.0.0.1:{redis.port}")
    assert refused.returncode == 1
    assert "NOAUTH" in refused.stderr
    answers_of(replay(rack, API, [{"t": 0, "key": "k"}], f"unix://:pa55@{redis.unix_path}?db=1"))


def test_a_line_of_100_mb_is_refused_before_it_is_read(rack: Rack) -> None:
    command = [program(), "replay", "--config", rack.write_config(API), "--limit", "api"]
    endless = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert endless.stdin is not None and endless.stderr is not None
    with endless:
        endless.stdin.write(b'{"t": 0, "key": "a"}\n')
        piece = b"x" * 65536
        written = 0
        with contextlib.suppress(BrokenPipeError):
            while written < 100_000_000:
                written += endless.stdin.write(piece)
        with contextlib.suppress(BrokenPipeError):
            endless.stdin.close()
        assert endless.stderr.read().decode().endswith("line 2: is over 65536 bytes\n")
    assert written < 1_000_000, "what is held of it is what a pipe and a buffer hold"
    assert endless.returncode == 1
