# SPDX-License-Identifier: MIT
"""A resolver for names ending in `.test` that answers what a test says, or hangs, in agents that are started with its
environment.

Ownership  The directory is the caller's; nothing else is left behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("steered_resolver.c")


class SteeredResolver:
    def __init__(self, directory: Path) -> None:
        compiler = shutil.which(os.environ.get("CC") or "cc")
        assert compiler, "a C compiler is needed to build the resolver"
        self._library = directory / "steered_resolver.so"
        self._orders = directory / "resolver"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", self._library, _SOURCE, "-ldl"]
        subprocess.run(command, check=True, timeout=60)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "STEERED_RESOLVER": str(self._orders),
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:verify_asan_link_order=0",
        }

    def answer(self, *addresses: str) -> None:
        self._order(" ".join(addresses))

    def hang(self) -> None:
        """From now on, until something else is said."""
        self._order("hang")

    def fail(self) -> None:
        self._order("fail")

    @property
    def calls(self) -> int:
        """Look-ups so far, those under way included."""
        noted = self._orders.with_name("resolver.calls")
        return len(noted.read_text().splitlines()) if noted.exists() else 0

    def _order(self, text: str) -> None:
        fresh = self._orders.with_name("resolver.new")
        fresh.write_text(text)
        fresh.replace(self._orders)
