"""The logs of ranks on one node: ``RUN/logs/MODEL/REPLICA/rankN.log``."""

from __future__ import annotations

import socket
from pathlib import Path

from longboat.cluster.gang.agent import read_end
from longboat.cluster.node.log_bounds import previous_of
from longboat.core.errors import ClusterError

__all__ = ("list_logs", "read_log")

MOST_READ_BYTES = 1 << 20


def read_log(
    run: Path, model: str, replica: str, node_rank: int, offset: int | None, num_lines: int
) -> tuple[int, str]:
    """Read a log from byte ``offset`` on (None: the last ``num_lines``); return text and next offset.

    Raises ClusterError when there is no such log on this node.
    """
    path = _file(run, model, replica, node_rank)
    if offset is None:
        return read_end(path, num_lines)
    if path.stat().st_size < offset:  # rotated since: the rest is in the file before, and then the log begins again
        return _next_of_previous(path, offset)
    data = _read(path, offset)
    return offset + len(data), data.decode(errors="replace")


def _next_of_previous(path: Path, offset: int) -> tuple[int, str]:
    previous = previous_of(path)
    data = _read(previous, offset) if previous.is_file() else b""
    return (offset + len(data) if len(data) == MOST_READ_BYTES else 0), data.decode(errors="replace")


def _read(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(MOST_READ_BYTES)


def list_logs(run: Path, model: str) -> tuple[tuple[str, int, float], ...]:
    """Return replica, node rank and time of last change of every log of ``model``, newest first."""
    folder = _folder(run, model)
    found = [(p.parent.name, int(p.stem.removeprefix("rank")), p.stat().st_mtime) for p in folder.glob("*/rank*.log")]
    return tuple(sorted(found, key=lambda entry: -entry[2]))


def _folder(run: Path, model: str) -> Path:
    if "/" in model or model.startswith("."):
        raise ClusterError(f"{model!r} is not the name of a model", hint="longboat status lists the models")
    return run / "logs" / model


def _file(run: Path, model: str, replica: str, node_rank: int) -> Path:
    if "/" in replica or replica.startswith("."):
        raise ClusterError(f"{replica!r} is not the name of a replica", hint="longboat status lists the replicas")
    path = _folder(run, model) / replica / f"rank{node_rank}.log"
    if not path.is_file():
        raise ClusterError(f"node {socket.gethostname()} has no log of {model}/{replica} rank {node_rank}")
    return path
