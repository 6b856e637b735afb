# SPDX-License-Identifier: MIT
"""`allowd replay`: many histories in one process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from histories import History
from oracle import JsonObject

_REPOSITORY = Path(__file__).resolve().parents[2]
_LIMIT = "x"
_SECONDS = 300.0


def default_binary() -> Path:
    return Path(os.environ.get("ALLOWD_BIN_DIR") or _REPOSITORY / "build" / "dev" / "bin") / "allowd"


class ReplayFailed(Exception):
    """The agent did not answer every line."""


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {_toml_value(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(inner) for inner in value) + "]"
    return json.dumps(value)


def toml_of(limit: JsonObject) -> str:
    return f"[limits.{_LIMIT}]\n" + "".join(f"{name} = {_toml_value(value)}\n" for name, value in limit.items())


def _lines_of(steps: Sequence[JsonObject]) -> str:
    return "".join(json.dumps(step) + "\n" for step in steps)


class Replayer:
    """Runs histories on one store: "memory", or the URL of a Redis."""

    def __init__(self, binary: Path, directory: Path, store: str) -> None:
        assert binary.is_file(), f"{binary} is not there: build it, or name its directory in ALLOWD_BIN_DIR"
        self._binary = binary
        self._config = directory / f"{store.split(':')[0]}.toml"
        self.store = store

    def answers(self, histories: Sequence[History]) -> list[list[JsonObject]]:
        """Of each history, one answer a step. Their keys are kept apart, so that they do not meet."""
        self._config.write_text(toml_of(histories[0].limit))
        lines: list[JsonObject] = []
        for number, history in enumerate(histories):
            if number > 0:
                lines.append({"op": "limit", "limit": history.limit})
            for step in history.steps:
                lines.append(step if step["op"] == "limit" else step | {"key": f"{number}:{step['key']}"})
        answered = iter(self._replay(lines))
        found = []
        for number, history in enumerate(histories):
            if number > 0:
                next(answered)
            found.append([next(answered) for _ in history.steps])
        return found

    @contextmanager
    def under_way(self, history: History) -> Iterator[subprocess.Popen[str]]:
        """A replay that has been given all lines and waits for more, so that its keys are there to look at."""
        self._config.write_text(toml_of(history.limit))
        with subprocess.Popen(self._command(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
            assert process.stdin
            process.stdin.write(_lines_of(history.steps))
            process.stdin.flush()
            yield process
            process.stdin.close()
            assert process.wait(_SECONDS) == 0

    def _command(self) -> list[str]:
        return [
            str(self._binary), "replay", "--config", str(self._config), "--limit", _LIMIT, "--store", self.store
        ]  # fmt: skip

    def _replay(self, lines: Sequence[JsonObject]) -> list[JsonObject]:
        done = subprocess.run(
            self._command(), input=_lines_of(lines), capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        if done.returncode != 0:
            raise ReplayFailed(f"exit code {done.returncode}: {done.stderr.strip()}")
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        if len(answers) != len(lines):
            raise ReplayFailed(f"{len(lines)} lines got {len(answers)} answers")
        return answers
