"""Gives SGLang's processes a folder for their metrics, and removes those of engines that were killed.

SGLang makes a temporary folder, which stays when the engine is killed. Here each engine holds a lock in its folder as
long as it lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path

__all__ = ("keep_folder", "prepare")

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_LOCK = "lock"


def prepare() -> None:
    """Make a folder for this engine, and let SGLang and the metrics' library use it."""
    base = _own(Path(tempfile.gettempdir()) / f"longboat-sglang-{os.getuid()}")
    with (base / _LOCK).open("w") as makers:  # one at a time
        fcntl.flock(makers, fcntl.LOCK_EX)
        _remove_left_behind(base)
        folder = Path(tempfile.mkdtemp(dir=base))
        lock_fd = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)  # stays open as long as the process lives
        fcntl.flock(lock_fd, fcntl.LOCK_EX)
    os.environ[VARIABLE] = str(folder)
    _choose_values_again()


def keep_folder() -> None:
    """Keep SGLang from making another folder. Raises AttributeError where it makes it elsewhere."""
    from sglang.srt.entrypoints import engine

    if not callable(engine.set_prometheus_multiproc_dir):
        raise AttributeError("set_prometheus_multiproc_dir")
    engine.set_prometheus_multiproc_dir = lambda: None


def _own(folder: Path) -> Path:
    """Return the folder, made if it is missing. Exits where another user may have made it, or a link in its place."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        sys.exit(f"longboat: {folder} is not a folder of this user; remove it, or set TMPDIR to another folder")
    folder.chmod(0o700)
    return folder


def _remove_left_behind(base: Path) -> None:
    """Remove folders whose lock is free: their engines are gone."""
    for lock in base.glob(f"*/{_LOCK}"):
        with contextlib.suppress(OSError), lock.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)


def _choose_values_again() -> None:
    """Let metrics be shared between processes, where a zygote imported their library without a folder."""
    values = sys.modules.get("prometheus_client.values")
    if values is not None:
        values.ValueClass = values.get_value_class()  # type: ignore[attr-defined]
