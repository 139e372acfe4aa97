"""Listens at one door of heartbeats, for ever: connects, reads, connects again when it falls silent."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Protocol

from longboat.heartbeat.wire import BEAT_EVERY_S, MAX_LINE_BYTES, decode_beat
from longboat.routing.health.liveness import Beat

__all__ = ("Listener", "listen")

_CONNECT_S = 0.3
_SILENT_S = 1.0


class Listener(Protocol):
    """Who wants the beats."""

    def on_beat(self, beat: Beat) -> None: ...
    def on_reached(self) -> None:
        """The node answered, though maybe only that nobody listens there."""


async def listen(host: str, port: int, word: bytes, listener: Listener) -> None:
    """Tell ``listener`` of every beat that comes from the door, until cancelled.

    A door that was silent for a second is tried anew again and again, each time for a short moment only: whether its
    node still answers is to be known before two seconds have passed.
    """
    while True:
        try:
            await _hear(host, port, word, listener)
        except TimeoutError:
            continue  # that was the pause
        except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError):
            listener.on_reached()
        except (OSError, ValueError, asyncio.LimitOverrunError):
            pass
        await asyncio.sleep(BEAT_EVERY_S)


async def _hear(host: str, port: int, word: bytes, listener: Listener) -> None:
    async with asyncio.timeout(_CONNECT_S):
        reader, writer = await asyncio.open_connection(host, port, limit=MAX_LINE_BYTES)
    try:
        listener.on_reached()
        with contextlib.suppress(OSError):
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        writer.write(word)
        while True:
            async with asyncio.timeout(_SILENT_S):
                line = await reader.readline()
            if not line:
                return
            listener.on_beat(decode_beat(line))
    finally:
        writer.transport.abort()
