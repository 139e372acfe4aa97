"""What a choice of an endpoint looks at, and what it decides."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

__all__ = ("Decision", "EndpointView", "Pick", "Shed", "ShedReason", "Wait")


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


E = TypeVar("E", bound=EndpointView)


class ShedReason(enum.StrEnum):
    """Why no endpoint can take the request, now or by waiting a moment."""

    NONE_READY = "none_ready"
    ALL_TRIED = "all_tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick(Generic[E]):
    """Send the request to ``endpoint``."""

    endpoint: E


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Every endpoint that could take the request is full; ``num_full`` of them."""

    num_full: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shed:
    """Refuse the request; ``num_endpoints`` were looked at."""

    reason: ShedReason
    num_endpoints: int


Decision = Pick[E] | Wait | Shed
