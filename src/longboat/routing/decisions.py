"""The view of an endpoint that a choice needs."""

from __future__ import annotations

from typing import Protocol

__all__ = ("EndpointView",)


class EndpointView(Protocol):
    """The view of an endpoint that a choice needs; the gateway's live endpoints have these attributes themselves."""

    @property
    def key(self) -> str: ...  # differs from that of every other endpoint of the model
    @property
    def ready(self) -> bool: ...  # takes new requests
    @property
    def suspect(self) -> bool: ...  # a connection to it failed a moment ago: chosen only when nothing better is left
    @property
    def outstanding(self) -> int: ...  # requests that this gateway process sent to it and that have not finished
    @property
    def capacity(self) -> int | None: ...  # most requests it may have outstanding; None: no limit
    def holds(self, adapter: str) -> bool:
        """Return whether its engine has the adapter in memory, as far as this process knows."""
