# SPDX-License-Identifier: MIT
"""The daemon itself: set ALLOWD_BIN to its binary."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Optional

import pytest
from fake_agent import PATIENCE

ALLOWD_BIN = os.environ.get("ALLOWD_BIN")

needs_the_daemon = pytest.mark.skipif(not ALLOWD_BIN, reason="ALLOWD_BIN names no daemon")


class RealAgent:
    """A daemon with the memory store and the given limits, its files in ``directory``."""

    def __init__(self, directory: Path, limits: str) -> None:
        self.path = str(directory / "allowd.sock")
        self._log = directory / "allowd.log"
        self._config = directory / "allowd.toml"
        self._config.write_text(f'[agent]\nsocket = "{self.path}"\n{limits}')
        self._process: Optional["subprocess.Popen[bytes]"] = None

    def start(self) -> None:
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [ALLOWD_BIN, "--config", str(self._config)], stdout=log, stderr=log
            )
        give_up = time.monotonic() + PATIENCE
        while not self._listens():
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < give_up, "the daemon does not listen"
            time.sleep(0.01)

    def kill(self) -> None:
        """Without a warning; its socket file stays."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "RealAgent":
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        died = self._process.poll() not in (None, -9)
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
        assert not died, self._log.read_text()

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as sock:
            return sock.connect_ex(self.path) == 0
