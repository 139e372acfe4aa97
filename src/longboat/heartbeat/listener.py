"""The client of one gang's heartbeat server: it connects, reads, and connects again after a silence."""

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
    """The receiver of heartbeats."""

    def on_beat(self, beat: Beat) -> None: ...
    def on_reached(self, *, is_refused: bool = False) -> None:
        """Note that the node replied. is_refused: by refusing the connection"""


async def listen(host: str, port: int, word: bytes, listener: Listener) -> None:
    """Pass every heartbeat of a server to ``listener``, until cancelled.

    After a second of silence, connect again, with a short time-out for each try: whether the node still replies must
    be known within two seconds.
    """
    while True:
        try:
            await _hear(host, port, word, listener)
        except TimeoutError:
            continue  # the time-out was the pause
        except ConnectionRefusedError:
            listener.on_reached(is_refused=True)
        except (ConnectionResetError, BrokenPipeError):
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
