"""A small TCP server of heartbeats: a client that sends the right greeting gets a line every 250 ms."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
from collections.abc import Callable

from longboat.heartbeat.wire import BEAT_EVERY_S, MAX_LINE_BYTES, encode_beat
from longboat.routing.health.liveness import Beat
from longboat.telemetry import logger

__all__ = ("BeatDoor", "door_socket")

log = logger("beats")

_KNOCK_S = 2.0
_MAX_BEHIND_BYTES = 16384
"""A client with more unread bytes than this is cut off."""

_MAX_LISTENERS = 4096


def door_socket(address: str) -> socket.socket:
    """Make a listening socket on a free port. Clients that connect before ``open`` wait in the kernel's queue.

    Raise OSError where the address cannot be used.
    """
    return socket.create_server((address, 0), backlog=256)


class BeatDoor:
    """Sends what ``tell()`` returns to all clients. ``tell`` is called once a beat, however many clients there are."""

    def __init__(self, listening: socket.socket, word: bytes, tell: Callable[[], Beat]) -> None:
        self._listening = listening
        self._word = word
        self._tell = tell
        self._listeners: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin to send heartbeats."""
        self._server = await asyncio.start_server(self._welcome, sock=self._listening, limit=MAX_LINE_BYTES)
        self._ticker = asyncio.get_running_loop().create_task(self._beat_always())

    def close(self) -> None:
        """Stop, and cut all clients off."""
        if self._ticker is not None:
            self._ticker.cancel()
        if self._server is not None:
            self._server.close()
        self._listening.close()
        for writer in tuple(self._listeners):
            writer.transport.abort()

    async def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_KNOCK_S):
                said = await reader.readline()
            if not hmac.compare_digest(said, self._word) or len(self._listeners) >= _MAX_LISTENERS:
                return
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            writer.write(encode_beat(self._tell()))
            self._listeners.add(writer)
            await reader.read(1)  # the client sends nothing more: a byte or the end of the stream ends the connection
        except (OSError, ValueError, asyncio.CancelledError):
            pass
        finally:
            self._listeners.discard(writer)
            writer.transport.abort()

    async def _beat_always(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            due_s = max(due_s + BEAT_EVERY_S, loop.time())
            await asyncio.sleep(due_s - loop.time())
            try:
                self._send(encode_beat(self._tell()))
            except Exception as error:  # one failed heartbeat must not end the later ones
                log.warning("a heartbeat could not be sent: %r", error)

    def _send(self, line: bytes) -> None:
        for writer in tuple(self._listeners):
            if writer.transport.get_write_buffer_size() > _MAX_BEHIND_BYTES:
                writer.transport.abort()
            else:
                writer.write(line)
