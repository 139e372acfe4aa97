"""What a choice of an endpoint looks at."""

from __future__ import annotations

from typing import Protocol

__all__ = ("EndpointView",)


class EndpointView(Protocol):
    """What a choice needs to know of an endpoint. The gateway's live endpoints have these attributes themselves.

    key: unlike that of every other endpoint of the model
    ready: takes new requests
    suspect: a connection to it failed a moment ago; it is chosen only when nothing better is left
    outstanding: requests sent to it by this gateway process and not finished
    capacity: most requests it may have outstanding; None is no limit
    """

    @property
    def key(self) -> str: ...
    @property
    def ready(self) -> bool: ...
    @property
    def suspect(self) -> bool: ...
    @property
    def outstanding(self) -> int: ...
    @property
    def capacity(self) -> int | None: ...
