# SPDX-License-Identifier: MIT
"""Two network namespaces and a wire between them that can be cut.

Root may have them; others may where the kernel lets them have a user namespace. They have no names: two sleeping
processes keep them, and when those end and nobody is left inside, the kernel takes everything down.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import processes
from scenario import Skipped

# The silent cut comes first: nothing tells either side that its packets are lost.
CUTS = {
    "silent": "the far host's address is gone, so what is sent to it is thrown away",
    "carrier": "the far end is down: no carrier",
    "unreachable": "the near end is down: the kernel knows no way",
}
_NEAR, _FAR = "10.213.0.1", "10.213.0.2"
_DEVICE = "wire0"


class Wire:
    """`near` and `far` are commands that become the one behind them, inside that namespace."""

    near_address, far_address = _NEAR, _FAR

    def __init__(self, directory: Path) -> None:
        self._log = directory / "network.log"
        self._holders: list[subprocess.Popen[bytes]] = []
        self._is_root = os.geteuid() == 0
        self._cut: str | None = None
        try:
            self.near = self._hold([] if self._is_root else ["unshare", "--user", "--map-root-user"])
            self.far = self._hold([] if self._is_root else self.near)
            self._connect()
        except (OSError, subprocess.CalledProcessError, AssertionError) as problem:
            self.close()
            said = getattr(problem, "stderr", b"") or str(problem).encode()
            raise Skipped(f"no network namespaces here: {said.decode().strip()}") from None

    def cut(self, how: str) -> None:
        """See CUTS; once until mend()."""
        assert self._cut is None
        match how:
            case "silent":
                self._ip(self.far, "address", "del", f"{_FAR}/24", "dev", _DEVICE)
            case "carrier":
                self._ip(self.far, "link", "set", _DEVICE, "down")
            case "unreachable":
                self._ip(self.near, "link", "set", _DEVICE, "down")
            case _:
                raise ValueError(how)
        self._cut = how

    def mend(self) -> None:
        match self._cut:
            case "silent":
                self._ip(self.far, "address", "add", f"{_FAR}/24", "dev", _DEVICE)
            case "carrier":
                self._ip(self.far, "link", "set", _DEVICE, "up")
            case "unreachable":
                self._ip(self.near, "link", "set", _DEVICE, "up")
        self._cut = None

    def with_resolver(self, address: str, directory: Path) -> list[str]:
        """Like `near`, for a process that asks that name server and no other."""
        config = directory / "resolv.conf"
        config.write_text(f"nameserver {address}\noptions timeout:30 attempts:5\n")
        script = f'mount --bind {config} /etc/resolv.conf && exec "$@"'
        within = [*self.near, "unshare", "--mount", "sh", "-c", script, "sh"]
        try:
            self._run(within, "true")
        except subprocess.CalledProcessError as problem:
            raise Skipped(f"no mount namespaces here: {problem.stderr.decode().strip()}") from None
        return within

    def close(self) -> None:
        """To be called when nobody is inside any more."""
        for holder in self._holders:
            processes.kill(holder)
        self._holders.clear()

    def _hold(self, within: Sequence[str]) -> list[str]:
        ours = os.readlink("/proc/self/ns/net")
        # Entering a user namespace makes the kernel forget that this process is to die with its parent.
        alive = ["setpriv", "--pdeathsig", "KILL", "sleep", "infinity"]
        holder = processes.start([*within, "unshare", "--net", *alive], self._log)
        self._holders.append(holder)

        def is_inside() -> bool:
            assert holder.poll() is None, self._log.read_text()
            is_sleeping = Path(f"/proc/{holder.pid}/comm").read_text().strip() == "sleep"
            return is_sleeping and os.readlink(f"/proc/{holder.pid}/ns/net") != ours

        processes.wait_until(is_inside, "a network namespace is there")
        user = [] if self._is_root else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(holder.pid), "--net", *user, "setpriv", "--pdeathsig", "KILL"]

    def _connect(self) -> None:
        far = str(self._holders[1].pid)
        peer = ["peer", "name", _DEVICE, "netns", far]
        self._ip(self.near, "link", "add", "name", _DEVICE, "type", "veth", *peer)
        for within, address in ((self.near, _NEAR), (self.far, _FAR)):
            self._ip(within, "address", "add", f"{address}/24", "dev", _DEVICE)
            self._ip(within, "link", "set", "lo", "up")
            self._ip(within, "link", "set", _DEVICE, "up")

    def _ip(self, within: Sequence[str], *words: str) -> None:
        self._run(within, "ip", *words)

    @staticmethod
    def _run(within: Sequence[str], *words: str) -> None:
        subprocess.run([*within, *words], check=True, capture_output=True, timeout=20)
