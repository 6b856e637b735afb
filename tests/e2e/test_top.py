# SPDX-License-Identifier: MIT
"""`top`: the hottest keys, as the agent and allowctl show them."""

from __future__ import annotations

import re
import subprocess

from daemon import Agent, Rack, program
from redis_server import RedisServer

LIMITS = """
[limits.api]
rate = "2/h"

[limits.watched]
rate = "1/h"
shadow = true

[limits.shut]
rate = "1/h"
overrides = { "nobody" = { deny = true } }
"""
HEADING = re.compile(r"# (queries|refusals) error limit key \((\d+) \1 in (\d+) s; no error is above (\d+)\)")


def sections(answer: str) -> dict[str, list[str]]:
    """The lines below each heading."""
    found: dict[str, list[str]] = {}
    for line in answer.splitlines():
        if heading := HEADING.fullmatch(line):
            rows = found.setdefault(heading[1], [])
        else:
            rows.append(line)
    assert list(found) == ["queries", "refusals"], answer
    return found


def top(agent: Agent, rows: int = 10) -> dict[str, list[str]]:
    return sections(agent.admin(f"top {rows}"))


def test_keys_are_ranked_by_queries_and_by_refusals(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    binary = b"\x00\xff\n\n\"k"
    for _ in range(5):
        agent.allow("api", binary)
    for _ in range(3):
        agent.allow("watched", "w")
    agent.allow("shut", "nobody")
    agent.allow({"name": "mine", "rate": "1/s"}, "x" * 1000, 2)
    shown = r'"\x00\xff\x0a\x0a\"k"'
    assert top(agent) == {
        "queries": [
            f'5 0 "api" {shown}',
            '3 0 "watched" "w"',
            f'1 0 "mine" "{"x" * 64}"...',
            '1 0 "shut" "nobody"',
        ],
        "refusals": [
            f'3 0 "api" {shown}',
            '2 0 "watched" "w"',
            f'1 0 "mine" "{"x" * 64}"...',
            '1 0 "shut" "nobody"',
        ],
    }
    assert [len(rows) for rows in top(agent, 2).values()] == [2, 2]


def test_a_hot_key_stands_out_of_a_flood_and_the_figures_keep_their_bound(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    times, others = 200, 5000
    with agent.connect() as client:
        for number in range(others):
            client.allow("api", f"once-{number}")
            if number % (others // times) == 0:
                client.allow("api", "hot")
    answer = agent.admin("top 100")
    for rows, occurrences, total in zip(
        sections(answer).values(), (times, times - 2), (times + others, times - 2), strict=True
    ):
        count, error, _, key = rows[0].split()
        assert key == '"hot"'
        assert int(count) - int(error) <= occurrences <= int(count)
        assert int(error) <= total // 512
    assert len(sections(answer)["queries"]) == 100
    heading = HEADING.match(answer)
    assert heading and int(heading[2]) == times + others and 0 < int(heading[4]) <= (times + others) // 512


def test_what_redis_decides_and_what_it_does_not_counts(rack: Rack, redis: RedisServer) -> None:
    agent = rack.start('[limits.api]\nrate = "2/h"\non_failure = "deny"', redis=f'url = "{redis.url}"')
    agent.wait_for_redis()
    decisions = [agent.allow("api", b"\x00k", deadline_us=5_000_000) for _ in range(5)]
    assert [decision.allowed for decision in decisions] == [True, True, False, False, False]
    assert top(agent) == {"queries": [r'5 0 "api" "\x00k"'], "refusals": [r'3 0 "api" "\x00k"']}
    assert agent.allow("api", b"\x00k", deadline_us=0).verdict == "unavailable"
    assert top(agent) == {"queries": [r'6 0 "api" "\x00k"'], "refusals": [r'4 0 "api" "\x00k"']}


def test_allowctl_shows_them_and_checks_its_argument(rack: Rack) -> None:
    agent = rack.start(LIMITS)
    agent.allow("api", "a b")

    def allowctl(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(program("allowctl")), "--socket", str(agent.path), "top", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=30)

    for words in [(), ("1",), ("100",)]:
        result = allowctl(*words)
        assert result.returncode == 0, result.stderr
        assert sections(result.stdout) == {"queries": ['1 0 "api" "a b"'], "refusals": []}
    for wrong in ("0", "101", "x"):
        assert allowctl(wrong).returncode == 2
