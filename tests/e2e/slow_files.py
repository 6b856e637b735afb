# SPDX-License-Identifier: MIT
"""A file that takes long to open, in agents that are started with its environment.

Ownership  The directory is the caller's; nothing else is left behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("slow_files.c")


class SlowFile:
    """`file` is opened after so many milliseconds, each time."""

    def __init__(self, directory: Path, file: Path, milliseconds: int) -> None:
        compiler = shutil.which(os.environ.get("CC") or "cc")
        assert compiler, "a C compiler is needed to build what slows files down"
        self._library = directory / "slow_files.so"
        self._file = file
        self._milliseconds = milliseconds
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", self._library, _SOURCE, "-ldl"]
        subprocess.run(command, check=True, timeout=60)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "SLOW_FILE": str(self._file),
            "SLOW_FILE_MS": str(self._milliseconds),
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:verify_asan_link_order=0",
        }

    @property
    def opened(self) -> int:
        """How often, so far."""
        noted = Path(f"{self._file}.opened")
        return len(noted.read_text().splitlines()) if noted.exists() else 0
