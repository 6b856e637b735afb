# SPDX-License-Identifier: MIT
"""Client of allowd, the per-host rate-limit agent.

    import allowd

    client = allowd.Client()
    if not client.allow("api", "tenant-42"):
        ...  # refused

How every client of allowd behaves is written in ``clients/README.md`` of the allowd repository.
"""

from .breaker import Breaker
from .client import Client
from .decision import Decision
from .errors import (
    AgentError,
    AgentUnavailable,
    AllowdError,
    ProtocolError,
    TimedOut,
    Unavailable,
)

__version__ = "0.1.0"

__all__ = [
    "AgentError",
    "AgentUnavailable",
    "AllowdError",
    "Breaker",
    "Client",
    "Decision",
    "ProtocolError",
    "TimedOut",
    "Unavailable",
]
