"""Keeps files about a node's zygotes, and tells their processes apart."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from longboat.engines.contract import EngineEnvironment
from longboat.file_lock import FileLock
from longboat.processes import born_ticks

__all__ = (
    "is_running",
    "locked",
    "namespaces",
    "read_record",
    "tail",
    "zygote_key",
    "zygotes_folder",
)


def zygotes_folder(run: Path) -> Path:
    """Return the folder of a run folder's zygotes; make it where missing, for this user alone."""
    folder = run / "zygotes"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def zygote_key(
    environment: EngineEnvironment, overlay: str, preload_env: Mapping[str, str], options: tuple[str, ...]
) -> str:
    """Return the identity of a zygote: two calls with the same key can share one."""
    parts = [environment.python, overlay, sorted(preload_env.items()), options, namespaces()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def namespaces() -> list[str]:
    """Return the host as the kernel sees it: pids and addresses are valid only inside these namespaces."""
    return [os.readlink(f"/proc/self/ns/{name}") for name in ("net", "pid")]


def locked(path: Path) -> FileLock:
    """Hold the lock of one zygote's files; starting and ending one takes seconds, so a wait is short."""
    return FileLock.held(path.with_suffix(".lock"))


def read_record(path: Path) -> dict[str, Any] | None:
    """Read how the zygote of this record was started; None if there is no record."""
    try:
        record: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return record


def is_running(record: Mapping[str, Any]) -> bool:
    """Return whether the very process of this record runs, and not a later one with its number."""
    return born_ticks(int(record["pid"])) == int(record.get("born") or 0) > 0


def tail(log: Path, num_lines: int = 20) -> tuple[str, ...]:
    """Return the last lines of a log, oldest first; nothing where there is no log."""
    try:
        return tuple(log.read_text(errors="replace").splitlines()[-num_lines:])
    except FileNotFoundError:
        return ()
