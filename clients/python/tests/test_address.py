# SPDX-License-Identifier: MIT
from __future__ import annotations

import pytest

from allowd.address import canonical_address


@pytest.mark.parametrize(
    "host, key",
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::FFFF:c000:207", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:0DB8:0001:0002::", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::1]", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::/64"),
        ("testclient", "testclient"),
        ("192.0.2.256", "192.0.2.256"),
    ],
)
def test_an_address_is_one_key_however_it_is_written(host, key):
    assert canonical_address(host) == key


def test_how_much_of_an_ipv6_address_counts_is_a_choice():
    assert canonical_address("2001:db8:1:2fff::1", 56) == "2001:db8:1:2f00::/56"
    assert canonical_address("2001:db8:1:2::1", 128) == "2001:db8:1:2::1"
    assert canonical_address("::ffff:192.0.2.7", 56) == "192.0.2.7"
