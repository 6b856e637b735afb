# SPDX-License-Identifier: MIT
"""One key for one client, however its address is written."""

from __future__ import annotations

import ipaddress


def canonical_address(host: str, ipv6_prefix: int = 64) -> str:
    """``host`` as a key: an IPv4 address as itself, also one mapped into IPv6; an IPv6 address as its
    network of ``ipv6_prefix`` bits, ``2001:db8:1:2::/64``, since one client has all of that; with 128 bits
    as itself. A zone id is dropped. What is no address is kept as it came.
    """
    text, _, _ = host.strip("[]").partition("%")
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if ipv6_prefix == 128:
        return str(address)
    return str(ipaddress.IPv6Network((int(address), ipv6_prefix), strict=False))
