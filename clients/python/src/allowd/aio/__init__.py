# SPDX-License-Identifier: MIT
"""The client for asyncio.

from allowd.aio import AsyncClient

client = AsyncClient()
if not await client.allow("api", "tenant-42"):
    ...  # refused
"""

from .client import AsyncClient

__all__ = ["AsyncClient"]
