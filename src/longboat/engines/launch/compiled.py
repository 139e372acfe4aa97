"""What engines compile, kept on the node: one folder for each engine, model configuration, split and hardware.

compiled/KEY          compiled code, which the replicas of this node share; the engines write there themselves
compiled/locks/KEY    held by every rank that uses it
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from longboat.core.plan import GangPlan
from longboat.engines.contract import EngineEnvironment
from longboat.file_lock import FileLock

__all__ = ("BUDGET_BYTES", "CompiledFolder", "compiled_key")

FOLDER, LOCKS = "compiled", "locks"
BUDGET_BYTES = 20 * 1024**3
"""Above this, folders that no rank uses are removed, the least recently used first."""
LOCK_S = 10.0
CONFIG = "config.json"


def compiled_key(environment: EngineEnvironment, plan: GangPlan, hardware: str) -> str:
    """Return the name of the folder; ranks with the same name may load each other's code.

    hardware: name of the accelerator, or of the processor
    """
    digest = hashlib.sha256()
    config = Path(plan.model_path) / CONFIG
    told = config.read_bytes() if config.is_file() else plan.model_path.encode()
    shape = f"{plan.shape.title} {plan.shape.num_nodes} {plan.shape.layers}"
    for part in (environment.distribution, environment.version, environment.fingerprint, shape, hardware):
        digest.update(part.encode() + b"\0")
    digest.update(told)
    return f"{environment.kind}-{digest.hexdigest()[:16]}"


class CompiledFolder:
    """A folder of compiled code, kept for as long as this object is not released."""

    def __init__(self, home: Path, key: str, budget_bytes: int = BUDGET_BYTES) -> None:
        """Make the folder where it is missing, and room for it. Raises OSError where it cannot be written."""
        self.path = home / FOLDER / key
        self._lock = FileLock.awaited(home / FOLDER / LOCKS / key, LOCK_S, shared=True)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.utime(self.path)
            _evict(home / FOLDER, budget_bytes)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let the folder be removed when room is needed."""
        if self._lock is not None:
            self._lock.release()


def _evict(folder: Path, budget_bytes: int) -> None:
    kept = sorted((path for path in folder.iterdir() if path.name != LOCKS), key=_used_at_s)
    sizes = {path: sum(_file_sizes(path)) for path in kept}
    for path in kept:
        if sum(sizes.values()) <= budget_bytes:
            return
        if (lock := FileLock.taken(folder / LOCKS / path.name)) is None:
            continue
        with lock:
            shutil.rmtree(path, ignore_errors=True)
        del sizes[path]


def _used_at_s(folder: Path) -> float:
    try:
        return folder.stat().st_mtime
    except OSError:  # another rank removes it
        return 0.0


def _file_sizes(folder: Path) -> Iterator[int]:
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # an engine replaces its files
                yield (Path(root) / name).lstat().st_size
