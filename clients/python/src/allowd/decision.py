# SPDX-License-Identifier: MIT
"""The answer to one question."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class Decision:
    """May this cost pass now, and if not, when?

    A plain value, true in a boolean context when allowed. Durations are whole microseconds where
    the name ends in ``_us``, float seconds otherwise. Verdicts and sources that a newer agent
    invents are kept as they came, so compare them, but do not expect the list below to be complete.
    """

    allowed: bool
    """Whether to go on. The only field that most callers need."""
    limit: int
    """What a full tier holds. 0 on an allowed decision means that no number is known, or none applies."""
    remaining: int
    """What is left after this decision, of the deciding tier."""
    retry_after_us: int
    """When this cost could pass: 0 if allowed (except in shadow), -1 for never."""
    reset_after_us: int
    """When the tier is full again."""
    verdict: str
    """``ok``, ``limited``, ``never``, ``shadow`` or ``unavailable``."""
    source: str
    """Who decided: ``local``, ``store`` or ``fallback`` in the agent; ``client`` if degraded."""
    tier: str
    """Name of the deciding tier, or empty."""
    window_us: int
    """The window, or a bucket's time from empty to full."""
    more_after_us: int
    """When a cost of ``remaining + 1`` could pass, 0 if the tier is full."""
    degraded: bool = False
    """True if the agent could not be asked and the client's fail policy decided."""

    def __bool__(self) -> bool:
        return self.allowed

    @property
    def retry_after(self) -> Optional[float]:
        """Seconds until this cost could pass; 0.0 if it has passed, None if it never will."""
        return None if self.retry_after_us < 0 else self.retry_after_us / 1e6

    @property
    def reset_after(self) -> float:
        """Seconds until the tier is full again."""
        return self.reset_after_us / 1e6

    @property
    def window(self) -> float:
        """Seconds of the window, or of a bucket from empty to full."""
        return self.window_us / 1e6

    @property
    def more_after(self) -> float:
        """Seconds until one more than ``remaining`` could pass, 0.0 if the tier is full."""
        return self.more_after_us / 1e6


def allowed_by_policy() -> Decision:
    """What ``fail="open"`` answers when the agent cannot."""
    return Decision(True, 0, 0, 0, 0, "ok", "client", "", 0, 0, degraded=True)


def refused_by_policy(retry_after_us: int) -> Decision:
    """What ``fail="closed"`` answers when the agent cannot."""
    return Decision(False, 0, 0, retry_after_us, 0, "unavailable", "client", "", 0, 0, degraded=True)
