"""The node's relay of heartbeats, in its daemon: it hears the gangs that the table assigns to it."""

from __future__ import annotations

from longboat.core.states import EndpointTable
from longboat.heartbeat.relay import Relay
from longboat.telemetry import logger

__all__ = ("NodeRelay",)

log = logger("daemon")


class NodeRelay:
    """The relay of one node. Without one, gateways hear the node's gangs directly."""

    def __init__(self, address: str) -> None:
        self._host = address
        self._relay: Relay | None = None
        self._seen: EndpointTable | None = None

    @property
    def address(self) -> str:
        """host:port; empty where there is no relay."""
        return self._relay.address if self._relay else ""

    @property
    def key(self) -> str:
        return self._relay.key if self._relay else ""

    @property
    def unwell(self) -> tuple[str, ...]:
        """The keys of endpoints that take no new requests by the judgement of the relay."""
        return self._relay.unwell if self._relay else ()

    async def follow(self, table: EndpointTable | None) -> None:
        """Open the relay where it is not open, and hear those gangs of the table that are its own."""
        if self._relay is None:
            try:
                self._relay = Relay(self._host)
            except OSError as error:
                log.warning("this node has no relay of heartbeats: %s", error)
                return
            await self._relay.open()
        if table is not None and table is not self._seen:
            self._seen = table
            if self._relay.is_assigned or self._relay.address in table.relays:
                self._relay.watch({e.key: e for e in table.endpoints if e.relay == self._relay.address})

    def close(self) -> None:
        if self._relay is not None:
            self._relay.close()
            self._relay = None
