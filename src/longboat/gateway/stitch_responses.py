"""Responses streams: what a client has of a response, and the rest of it out of a new stream."""

from __future__ import annotations

from longboat.gateway.stitch_parts import Event

__all__ = ("ReceivedResponse", "RestOfResponse")


class ReceivedResponse:
    """What a client has of a response."""

    def __init__(self) -> None:
        self.ended = False

    def note(self, event: Event) -> None:
        raise NotImplementedError

    def carried(self, choice: int, num_ids: int) -> int:
        raise NotImplementedError

    def has_all(self, choice: int) -> bool:
        raise NotImplementedError

    @property
    def held_bytes(self) -> int:
        return 0


class RestOfResponse:
    """The rest of a response."""

    def __init__(self, received: ReceivedResponse) -> None:
        self._received = received

    @property
    def caught_up(self) -> bool:
        raise NotImplementedError

    def block(self, events: bytes) -> bytes | None:
        raise NotImplementedError

    def event(self, event: Event, position: tuple[int, ...]) -> bytes:
        raise NotImplementedError
