# SPDX-License-Identifier: MIT
"""Agents for whom time passes faster, so that what they do after minutes is seen within seconds.

libfaketime stands between such an agent and its clocks and waits, all of them: to others its timeouts are as much
shorter, and its log shows its own time. What a real server counts goes on at the usual pace.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from daemon import Agent, is_sanitized

IS_LONG = os.environ.get("ALLOWD_E2E_LONG") == "1"


def hurried(times: int) -> dict[str, str]:
    """The environment of an agent for whom time passes so many times as fast."""
    if times == 1:
        return {}
    if is_sanitized():
        pytest.skip("a sanitizer has to be loaded first, and so has libfaketime")
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    assert found, "libfaketime is not there: install the package faketime"
    return {"LD_PRELOAD": str(found[0]), "FAKETIME": f"+0 x{times}"}


def seconds_of(agent: Agent) -> float:
    """Since it started, by its own clock."""
    return float(agent.ask("info")["uptime_us"]) / 1e6
