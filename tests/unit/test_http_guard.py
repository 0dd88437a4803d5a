"""The guard judges addresses by what they reach, however they are written."""

from __future__ import annotations

import asyncio

import pytest

from outspark.brokers.http.guard import not_public, resolve
from outspark.errors import DestinationError


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.0.0.1", "a loopback address"),
        ("127.8.9.10", "a loopback address"),
        ("::1", "a loopback address"),
        ("::ffff:127.0.0.1", "a loopback address"),
        ("64:ff9b::7f00:1", "a loopback address"),
        ("2002:7f00:1::", "a loopback address"),
        ("169.254.169.254", "a link-local address"),
        ("::ffff:169.254.169.254", "a link-local address"),
        ("64:ff9b::a9fe:a9fe", "a link-local address"),
        ("fe80::1%1", "a link-local address"),
        ("10.0.0.1", "a private address"),
        ("172.16.5.4", "a private address"),
        ("192.168.1.1", "a private address"),
        ("::ffff:10.0.0.1", "a private address"),
        ("100.64.0.1", "a private address"),
        ("100.100.100.200", "a private address"),
        ("192.0.0.192", "a private address"),
        ("fd00:ec2::254", "a private address"),
        ("fec0::1", "a private address"),
        ("2001:db8::1", "a private address"),
        ("168.63.129.16", "a cloud platform's own address"),
        ("224.0.0.1", "a multicast address"),
        ("ff02::1", "a multicast address"),
        ("0.0.0.0", "a reserved address"),
        ("::", "a reserved address"),
        ("::7f00:1", "a reserved address"),
        ("255.255.255.255", "a reserved address"),
    ],
)
def test_addresses_that_are_not_public(address: str, kind: str) -> None:
    assert not_public(address) == kind


@pytest.mark.parametrize(
    "address",
    ["1.1.1.1", "93.184.216.34", "172.32.0.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"],
)
def test_public_addresses(address: str) -> None:
    assert not_public(address) is None


# inet_aton reads a plain or hexadecimal number as an address, and so does the system's resolver.
@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f000001", "127.1", "::1"])
def test_a_host_is_judged_by_its_addresses_not_by_its_name(host: str) -> None:
    with pytest.raises(DestinationError, match=r"is a loopback address.*allow_private = true"):
        asyncio.run(resolve(host, 80, allow_private=False))


def test_with_the_opt_in_the_addresses_come_back() -> None:
    assert asyncio.run(resolve("127.0.0.1", 80, allow_private=True)) == ["127.0.0.1"]


def test_a_public_address_comes_back_without_the_opt_in() -> None:
    assert asyncio.run(resolve("1.1.1.1", 443, allow_private=False)) == ["1.1.1.1"]
