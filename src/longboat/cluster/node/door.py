"""The node daemon's door for commands on its machine: a Unix socket, so that they need neither Ray nor a connection.

One connection is one question: a line of JSON, and a document of JSON in reply (``door_client``).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from longboat.cluster.node.door_client import MAX_QUESTION_BYTES, door_path
from longboat.core.errors import LongboatError
from longboat.telemetry import logger

__all__ = ("CommandDoor",)

log = logger("daemon")

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
Answer = Callable[..., Awaitable[Any]]


class CommandDoor:
    """Answers the commands of this node's own user. Files below the run folder are for that user only, too."""

    def __init__(self, run: Path, answers: Mapping[str, Answer]) -> None:
        """answers: what can be asked → who answers; the arguments come from the question"""
        self._path = door_path(run)
        self._answers = answers
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen, in the place of a daemon that ended."""
        if self._server is None:
            self._path.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(self._serve, self._path, limit=MAX_QUESTION_BYTES)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if _is_ours(writer.get_extra_info("socket")):
                writer.write(msgspec.json.encode(await self._reply(await reader.readline())))
                await writer.drain()
        except (OSError, ValueError) as error:
            log.debug("a command's question was not answered: %r", error)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _reply(self, line: bytes) -> dict[str, Any]:
        try:
            question = msgspec.json.decode(line)
            answer = self._answers[question["ask"]]
            return {"value": await answer(*question.get("args", ()))}
        except LongboatError as error:
            return {"error": error.message, "hint": error.hint}
        except Exception as error:  # the command tells it; the daemon goes on
            cause = getattr(error, "cause", None)
            known = cause if isinstance(cause, LongboatError) else None
            return {"error": known.message if known else f"{type(error).__name__}: {error}", "hint": ""}


def _is_ours(connection: socket.socket) -> bool:
    """Return whether this node's own user, or root, asks."""
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(found)[1] in (0, os.getuid())
