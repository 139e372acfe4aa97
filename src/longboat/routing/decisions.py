"""The view of an endpoint that a choice needs, and the possible decisions."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

__all__ = ("Decision", "EndpointView", "Pick", "Shed", "ShedReason", "Wait")


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


E = TypeVar("E", bound=EndpointView)


class ShedReason(enum.StrEnum):
    """The reason why no endpoint can take the request, now or after a short wait."""

    NONE_READY = "none_ready"
    ALL_TRIED = "all_tried"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick(Generic[E]):
    """The decision to send the request to ``endpoint``."""

    endpoint: E


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The decision to wait: every endpoint that could take the request is full."""

    num_full: int  # number of these endpoints


@dataclass(frozen=True, slots=True, kw_only=True)
class Shed:
    """The decision to refuse the request."""

    reason: ShedReason
    num_endpoints: int  # number of endpoints that were considered


Decision = Pick[E] | Wait | Shed
