"""Ports for what a test starts."""

from __future__ import annotations

import random
import socket
from contextlib import suppress

__all__ = ("free_port",)

_PORTS = range(20_000, 32_768)
"""Below those that Linux gives to outgoing connections: one may be given away before an engine has started."""
_chance = random.SystemRandom()  # tests set the seed of the module's own, to the same one in each process


def free_port() -> int:
    """Return a TCP port that is free on all addresses of this machine right now."""
    while True:
        port = _chance.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
