"""Clients on the gateway's own machine, which need no key for some answers."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from ipaddress import ip_address

from longboat.gateway.limits.client_address import address_in

__all__ = ("is_here",)

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\[\]:]+))(?::[0-9]{0,5})?")


def is_here(noted: Mapping[bytes, bytes], peer: str) -> bool:
    """Return whether the client itself is on this machine, rather than a proxy or a page of another site.

    noted: the request's headers by lower-case name; peer: the client's IP address
    """
    if b"x-forwarded-for" in noted or b"forwarded" in noted:
        return False
    address = address_in(peer)
    return address is not None and address.is_loopback and _names_this_machine(noted.get(b"host"))


def _names_this_machine(host: bytes | None) -> bool:
    """Return whether the client connected by an IP address, localhost or this machine's name; browsers send ``Host``.

    A page of another site may have a name of its own resolved to this machine, and would read the answers by it.
    """
    if not host:
        return True
    found = _HOST.fullmatch(host.decode("latin-1").strip().lower())
    if found is None:
        return False
    name = found[1] or found[2]
    if name in ("localhost", socket.gethostname().lower()):
        return True
    try:
        return bool(ip_address(name))
    except ValueError:
        return False
