"""Reserves free ports of a node for a rank until the rank starts."""

from __future__ import annotations

import socket

__all__ = ("RankPorts",)


class RankPorts:
    """The ports of one rank. Each stays bound until ``release``, so that no other rank gets it too."""

    def __init__(self) -> None:
        self._holders: list[socket.socket] = []

    def reserve(self, address: str) -> int:
        """Bind a free port of ``address`` and return its number."""
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((address, 0))
        self._holders.append(holder)
        port: int = holder.getsockname()[1]
        return port

    def release(self) -> None:
        """Unbind all ports: the rank starts now and binds them itself."""
        for holder in self._holders:
            holder.close()
        self._holders.clear()
