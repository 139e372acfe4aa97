"""The address of a client: of its connection, or as a proxy that the fleet trusts names it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

__all__ = ("Network", "address_in", "client_address", "household")

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_MAX_HOPS = 16
_HOUSEHOLD_BITS = 64
"""The part of an IPv6 address that its owner cannot choose."""


def address_in(text: str) -> Address | None:
    """Return the IP address that a text writes, perhaps with a port; None where it writes none."""
    text = text.strip().partition("%")[0]
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def client_address(peer: str, forwarded: bytes, proxies: Sequence[Network]) -> Address | None:
    """Return the client's address; None where the connection has none.

    Clients may write anything in front of what proxies add, so the hops are read from the end, as long as each is of a
    proxy of the fleet.

    forwarded: the header ``X-Forwarded-For``; proxies: that the fleet trusts
    """
    found = address_in(peer)
    for hop in reversed(forwarded.decode("latin-1").rsplit(",", _MAX_HOPS)[-_MAX_HOPS:]):
        before = address_in(hop)
        if before is None or found is None or not any(found in network for network in proxies):
            break
        found = before
    return found


def household(address: Address | None) -> str:
    """Return what one client has to itself, as text: an IPv4 address, or an IPv6 network of 64 bits."""
    if isinstance(address, IPv6Address):
        return str(ip_network((address, _HOUSEHOLD_BITS), strict=False))
    return str(address or "")
