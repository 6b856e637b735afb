# SPDX-License-Identifier: MIT
"""A resolver for names ending in `.test` that answers what a test says, or hangs, in agents that are started with its
environment.

Ownership  The directory is the caller's; nothing else is left behind.
"""

from __future__ import annotations

from pathlib import Path

from preload import Preload

_SOURCE = Path(__file__).with_name("steered_resolver.c")


class SteeredResolver:
    def __init__(self, directory: Path) -> None:
        self._preload = Preload(directory, _SOURCE)
        self._orders = directory / "resolver"

    @property
    def environment(self) -> dict[str, str]:
        return {
            **self._preload.environment,
            "STEERED_RESOLVER": str(self._orders),
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
