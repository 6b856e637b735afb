# SPDX-License-Identifier: MIT
"""Where the agent's socket is."""

from __future__ import annotations

import os
import stat
from typing import List, Mapping, Optional, Tuple

from .errors import Unavailable

SYSTEM_SOCKET = "/run/allowd/allowd.sock"
SHARED_TMP = "/tmp"


def find_socket(
    environ: Optional[Mapping[str, str]] = None,
    *,
    system_socket: str = SYSTEM_SOCKET,
    shared_tmp: str = SHARED_TMP,
) -> Tuple[Optional[str], List[str]]:
    """The path to connect to, or None, and the paths that were looked at.

    ``$ALLOWD_SOCKET`` is taken at its word, whether it exists or not. Otherwise the first socket
    that exists of the system's, the session's and the user's own. Empty variables count as unset.
    Called for each connect, so that an agent that starts later is found.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("ALLOWD_SOCKET")
    if named:
        return named, [named]

    looked_at = [system_socket]
    if os.path.exists(system_socket):
        return system_socket, looked_at

    runtime_dir = environ.get("XDG_RUNTIME_DIR")
    if runtime_dir:
        session_socket = os.path.join(runtime_dir, "allowd.sock")
        looked_at.append(session_socket)
        if os.path.exists(session_socket):
            return session_socket, looked_at

    own_dir = os.path.join(shared_tmp, f"allowd-{os.getuid()}")
    own_socket = os.path.join(own_dir, "allowd.sock")
    looked_at.append(own_socket)
    if _is_own_directory(own_dir) and os.path.exists(own_socket):
        return own_socket, looked_at

    return None, looked_at


def socket_to_use(named: Optional[str]) -> str:
    """The path the caller named, else the one that is found. Unavailable if there is none."""
    if named is not None:
        return named
    path, looked_at = find_socket()
    if path is None:
        raise Unavailable(f"no agent's socket at {', '.join(looked_at)}")
    return path


def _is_own_directory(path: str) -> bool:
    # Anyone may create names in a shared /tmp: a directory of somebody else is not our agent's.
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
