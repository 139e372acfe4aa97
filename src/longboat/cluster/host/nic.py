"""Which network card and address of this node the others reach it by; asks the kernel, runs no command."""

from __future__ import annotations

import array
import fcntl
import ipaddress
import socket
import struct

from longboat.core.errors import ClusterError, UserInputError

__all__ = ("addresses", "head_address", "interface_of", "route_source")

_SIOCGIFCONF = 0x8912  # linux/sockios.h: all IPv4 addresses with the names of their cards
_ENTRY_BYTES = 40  # sizeof(struct ifreq) on 64-bit Linux
_NAME_BYTES = 16
_MAX_ADDRESSES = 1024
_ELSEWHERE = "240.0.0.1"  # class E (RFC 1112): no network has it, so only the default route leads there


def addresses() -> list[tuple[str, str]]:
    """(network card, IPv4 address) pairs of this node, loopback included, in the kernel's order."""
    room = array.array("B", bytes(_MAX_ADDRESSES * _ENTRY_BYTES))
    where, _length = room.buffer_info()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        filled = fcntl.ioctl(probe, _SIOCGIFCONF, struct.pack("iL", len(room), where))
    num_bytes = struct.unpack("iL", filled)[0]
    raw = room.tobytes()[:num_bytes]
    return [_entry(raw[start : start + _ENTRY_BYTES]) for start in range(0, num_bytes, _ENTRY_BYTES)]


def _entry(raw: bytes) -> tuple[str, str]:
    label = raw[:_NAME_BYTES].split(b"\0", 1)[0].decode()
    return label.partition(":")[0], socket.inet_ntoa(raw[_NAME_BYTES + 4 : _NAME_BYTES + 8])


def route_source(peer: str) -> str:
    """Return this node's address that packets to ``peer`` (IPv4 address or host name) leave from.

    Raises ClusterError where no route leads there or the name is unknown. Sends nothing.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
        except socket.gaierror as error:
            raise ClusterError(f"no host is called {peer!r}: {error.strerror}", hint="give its IPv4 address") from error
        except OSError as error:
            raise ClusterError(
                f"no route leads from this node to {peer}: {error.strerror}",
                hint="check the address, and that this node's network card is up",
            ) from error
        source: str = probe.getsockname()[0]
    return source


def interface_of(address: str) -> str:
    """Return the name of the network card with ``address`` (eth0). Raises ClusterError where none has it."""
    known = addresses()
    for name, candidate in known:
        if candidate == address:
            return name
    raise ClusterError(
        f"no network card of this node has the address {address}", hint=f"this node has: {_listed(known)}"
    )


def head_address() -> str:
    """Return the head's address: that of the default route, or else the only one that others can reach.

    Raises UserInputError, with the candidates, where neither settles it.
    """
    try:
        return route_source(_ELSEWHERE)
    except ClusterError:
        return _only_reachable(addresses())


def _only_reachable(known: list[tuple[str, str]]) -> str:
    others = [(name, address) for name, address in known if not ipaddress.ip_address(address).is_loopback]
    if len(others) == 1:
        return others[0][1]
    if not others:
        raise UserInputError(
            "this node has no IPv4 address that others could reach",
            hint="use --local for a cluster of this node only",
        )
    raise UserInputError(
        f"this node has several network addresses and no default route: {_listed(others)}",
        hint=f"say which one the other nodes reach: --address {others[0][1]}",
    )


def _listed(known: list[tuple[str, str]]) -> str:
    return ", ".join(f"{address} ({name})" for name, address in known)
