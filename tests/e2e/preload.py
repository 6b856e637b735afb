# SPDX-License-Identifier: MIT
"""C code that stands in front of the C library's in an agent that is started with its environment.

Ownership  The directory is the caller's; nothing else is left behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


class Preload:
    def __init__(self, directory: Path, source: Path) -> None:
        compiler = shutil.which(os.environ.get("CC") or "cc")
        assert compiler, f"a C compiler is needed to build {source.name}"
        self._library = directory / source.with_suffix(".so").name
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", self._library, source, "-ldl"]
        subprocess.run(command, check=True, timeout=60)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:verify_asan_link_order=0",
        }
