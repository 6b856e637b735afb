# SPDX-License-Identifier: MIT
"""What the kernel says about a process: CPU, memory, wake-ups. All threads together."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time so far; the kernel shows it in ticks, mostly of 10 ms."""
    text = Path(f"/proc/{pid}/stat").read_text()
    after_name = text.rpartition(")")[2].split()  # the name may hold spaces; then field 3 follows
    return (int(after_name[11]) + int(after_name[12])) / _TICKS_PER_SECOND


def resident_bytes(pid: int) -> int:
    """VmRSS."""
    return _status_number(Path(f"/proc/{pid}/status"), "VmRSS") * 1024


def peak_resident_bytes(pid: int) -> int:
    """VmHWM: the most that it ever was."""
    return _status_number(Path(f"/proc/{pid}/status"), "VmHWM") * 1024


def voluntary_switches(pid: int) -> int:
    """How often its threads have gone to sleep so far, that is how often they were woken."""
    return sum(
        _status_number(task / "status", "voluntary_ctxt_switches") for task in Path(f"/proc/{pid}/task").iterdir()
    )


def _status_number(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise KeyError(f"{path} has no {name}")
