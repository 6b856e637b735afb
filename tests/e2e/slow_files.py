# SPDX-License-Identifier: MIT
"""A file that takes long to open, in agents that are started with its environment.

Ownership  The directory is the caller's; nothing else is left behind.
"""

from __future__ import annotations

from pathlib import Path

from preload import Preload

_SOURCE = Path(__file__).with_name("slow_files.c")


class SlowFile:
    """`file` is opened after so many milliseconds, each time."""

    def __init__(self, directory: Path, file: Path, milliseconds: int) -> None:
        self._preload = Preload(directory, _SOURCE)
        self._file = file
        self._milliseconds = milliseconds

    @property
    def environment(self) -> dict[str, str]:
        return {
            **self._preload.environment,
            "SLOW_FILE": str(self._file),
            "SLOW_FILE_MS": str(self._milliseconds),
        }

    @property
    def opened(self) -> int:
        """How often, so far."""
        noted = Path(f"{self._file}.opened")
        return len(noted.read_text().splitlines()) if noted.exists() else 0
