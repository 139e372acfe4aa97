"""The connections of this process to one engine: opened when needed, pooled between two requests."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Final, cast

from longboat.gateway.upstreams.connection import UpstreamConnection

if TYPE_CHECKING:
    from longboat.gateway.external.address import Address

__all__ = ("IdleConnections",)

_monotonic_s: Final = time.monotonic


class IdleConnections:
    """The pool of connections to one engine that carry no request now."""

    __slots__ = ("_address", "_closed", "_idle", "_target", "_timeout_s")

    def __init__(self, target: tuple[str, int], timeout_s: float, address: Address | None = None) -> None:
        """address: of an external model; None: of an engine, which is reached directly and without TLS"""
        self._address = address
        self._target = target  # host and port
        self._timeout_s = timeout_s  # for opening a connection
        self._idle: list[tuple[UpstreamConnection, float]] = []  # with the time since which each is idle
        self._closed = False  # no connection is pooled any more

    def take(self) -> UpstreamConnection | None:
        """Return the most recently used connection; None where no usable one is pooled."""
        while self._idle:
            connection, _ = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def open(self) -> UpstreamConnection:
        """Open a further connection.

        :raises OSError: refused, unreachable or closed at once; TimeoutError (an OSError) when it takes too long
        """
        connection = UpstreamConnection(self.keep)
        try:
            if self._address is not None:
                await self._address.open(lambda: connection.path)
            else:
                async with asyncio.timeout(self._timeout_s):
                    await asyncio.get_running_loop().create_connection(
                        lambda: cast("asyncio.Protocol", connection.path), *self._target
                    )
        except UnicodeError as error:  # from the name look-up
            raise OSError(f"{self._target[0]!r} is not a valid host name") from error
        except asyncio.CancelledError:
            connection.abort()  # it may have been made in the meantime
            raise
        if not connection.usable:
            raise ConnectionResetError("the engine closed the connection at once")
        return connection

    def keep(self, connection: UpstreamConnection) -> None:
        """Pool a connection whose response is complete, or close it where the pool is closed."""
        if self._closed:
            connection.close()
        else:
            self._idle.append((connection, _monotonic_s()))

    def drop(self, before_s: float = math.inf) -> None:
        """Close the connections that were pooled before this time."""
        while self._idle and self._idle[0][1] < before_s:
            self._idle.pop(0)[0].close()

    def close(self) -> None:
        """Close all pooled connections, and those that would be pooled later."""
        self._closed = True
        self.drop()
