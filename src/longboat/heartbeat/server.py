"""A server of heartbeats: a client that sends the right greeting gets a line every 250 ms."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Callable

from longboat.heartbeat.line_server import LineServer
from longboat.heartbeat.wire import BEAT_EVERY_S, encode_beat
from longboat.routing.health.liveness import Beat

__all__ = ("BeatDoor",)

_MAX_BEHIND_BYTES = 16384


class BeatDoor(LineServer[bool]):
    """Sends what ``tell()`` returns to all clients. ``tell`` is called once a beat, however many clients there are."""

    def __init__(self, listening: socket.socket, word: bytes, tell: Callable[[], Beat]) -> None:
        self._word = word
        self._tell = tell
        super().__init__(listening, self, every_s=BEAT_EVERY_S, max_behind_bytes=_MAX_BEHIND_BYTES)

    def welcome(self, greeting: bytes) -> tuple[bool, bytes] | None:
        """Return the newest heartbeat for a client that knows the word; the server keeps nothing else of it."""
        return (True, encode_beat(self._tell())) if hmac.compare_digest(greeting, self._word) else None

    def turn(self) -> None:
        """Send one heartbeat to all clients."""
        line = encode_beat(self._tell())
        self.send(lambda _: line)
