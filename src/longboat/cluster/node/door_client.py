"""The client of the node daemon's door, for commands. Imports nothing heavy."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import msgspec

from longboat.core.errors import ClusterError

__all__ = ("MAX_QUESTION_BYTES", "DoorClient", "DoorClosedError", "door_path")

MAX_QUESTION_BYTES = 1 << 20
_PIECE_BYTES = 1 << 18
_TIMEOUT_S = 20.0


class DoorClosedError(ClusterError):
    """No daemon answers on this machine: it has no fleet, or the daemon is being started."""


def door_path(run: Path) -> Path:
    """Return the socket's path, in the run folder (mode 0700)."""
    return run / "daemon.sock"


class DoorClient:
    """Asks this node's daemon. Every method raises DoorClosedError where none is there."""

    def __init__(self, run: Path) -> None:
        self._path = str(door_path(run))

    def ask(self, what: str, *args: object, timeout_s: float = _TIMEOUT_S) -> Any:
        """Return the daemon's answer as plain values. Raises ClusterError where it has none."""
        return _value(json.loads(self._read(what, args, timeout_s)))

    def ask_for(self, kind: Any, what: str, *args: object, timeout_s: float = _TIMEOUT_S) -> Any:
        """Return the daemon's answer as a ``kind``. Raises ClusterError where it has none."""
        read = self._read(what, args, timeout_s)
        reply = msgspec.json.decode(read, type=dict[str, msgspec.Raw])
        if "value" not in reply:
            return _value(json.loads(read))
        return msgspec.json.decode(reply["value"], type=kind)

    def _read(self, what: str, args: tuple[object, ...], timeout_s: float) -> bytes:
        question = json.dumps({"ask": what, "args": args}).encode() + b"\n"
        pieces = []
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(timeout_s)
                connection.connect(self._path)
                connection.sendall(question)
                while piece := connection.recv(_PIECE_BYTES):
                    pieces.append(piece)
        except OSError as error:
            raise DoorClosedError(f"this node's daemon does not answer: {error}", hint="longboat status") from error
        if not pieces:
            raise DoorClosedError("this node's daemon ended while it was asked", hint="longboat status")
        return b"".join(pieces)


def _value(reply: dict[str, Any]) -> Any:
    if "value" not in reply:
        raise ClusterError(str(reply.get("error")), hint=str(reply.get("hint") or ""))
    return reply["value"]
