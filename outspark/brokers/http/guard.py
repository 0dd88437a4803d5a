"""Which addresses a webhook may be sent to: public ones, unless the operator allows others.

`resolve` checks every address of a name. The caller connects to the returned addresses and does not resolve the name
again, so the name cannot point elsewhere between check and connection (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket

from outspark.errors import DestinationDown, DestinationError

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# A public address, but inside Azure it is a platform service that returns credentials.
_AZURE_PLATFORM = ipaddress.IPv4Address("168.63.129.16")

# Not public either, but some versions of `ipaddress` report them as global.
_SPECIAL = (ipaddress.ip_network("192.0.0.0/24"), ipaddress.ip_network("fec0::/10"))


async def resolve(host: str, port: int, *, allow_private: bool) -> list[str]:
    """Return the addresses of `host`, all of them allowed.

    DestinationError if one is not public, DestinationDown if the name has no address now.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise DestinationDown(f"the name has no address: {error.strerror or error}") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    if not allow_private:
        for address in addresses:
            if kind := not_public(address):
                raise DestinationError(
                    f"{address} is {kind}, and webhooks are sent to public addresses only; "
                    "to allow it, set the option allow_private = true"
                )
    return addresses


def not_public(address: str) -> str | None:
    """`127.0.0.1` is "a loopback address", `::ffff:10.0.0.1` is "a private address"; None for a public one."""
    ip = _reached(ipaddress.ip_address(address))
    if ip.is_loopback:
        return "a loopback address"
    if ip.is_link_local:
        return "a link-local address"
    if ip == _AZURE_PLATFORM:
        return "a cloud platform's own address"
    if ip.is_multicast:
        return "a multicast address"
    if ip.is_unspecified or ip.is_reserved:
        return "a reserved address"
    if not ip.is_global or any(ip in network for network in _SPECIAL):
        return "a private address"
    return None


def _reached(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The IPv4 address that an IPv6 address embeds (mapped, 6to4, NAT64), or the address itself."""
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if ip in _NAT64:
        return ipaddress.IPv4Address(ip.packed[-4:])
    return ip.ipv4_mapped or ip.sixtofour or ip
