"""Where Longboat keeps things on a node: what lasts (home) and what belongs to running processes (run)."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from longboat.core.errors import ClusterError
from longboat.user import user_home

__all__ = (
    "home_folder",
    "log_path",
    "node_folder",
    "open_files",
    "owner_name",
    "private_folder",
    "run_folder",
    "temporary_folder",
)

MAX_LOGGED_REPLICAS = 50
"""A model that dies again and again must not fill the disk."""


def home_folder(env: Mapping[str, str] = os.environ) -> Path:
    """``LONGBOAT_HOME``, else the user's data folder: engine environments, overlays, generated models."""
    if explicit := env.get("LONGBOAT_HOME"):
        return Path(explicit).absolute()
    data = env.get("XDG_DATA_HOME") or str(user_home() / ".local" / "share")
    return Path(data) / "longboat"


def run_folder(env: Mapping[str, str] = os.environ) -> Path:
    """``LONGBOAT_RUN``, else a folder of this user under /tmp: logs, sockets, process records. Mode 0700.

    Raises ClusterError where it cannot be made, or belongs to another user.
    """
    explicit = env.get("LONGBOAT_RUN")
    folder = Path(explicit).absolute() if explicit else Path("/tmp") / f"longboat-{os.getuid()}"  # noqa: S108
    try:
        private_folder(folder.resolve() if explicit else folder)  # a link that the user names is the user's choice
        return folder
    except OSError as error:
        raise ClusterError(
            f"{folder} cannot be the run folder: {error.strerror}", hint="set LONGBOAT_RUN to a folder of your own"
        ) from error


def temporary_folder(run: Path) -> dict[str, str]:
    """Return a TMPDIR in the run folder, which is made, where no usual folder for temporary files can be written to.

    That is so in a container whose root file system is read-only.
    """
    with contextlib.suppress(FileNotFoundError):
        tempfile.gettempdir()
        return {}
    return {"TMPDIR": str(private_folder(run / "tmp"))}


def node_folder(run: Path, env: Mapping[str, str] = os.environ) -> Path:
    """Return the folder for what a node must find again after a reboot: what it was, and a head's state.

    It is the node's own, also where machines share their home folder, or one machine has several run folders.
    """
    return home_folder(env) / "nodes" / owner_name(run)


def owner_name(folder: Path) -> str:
    """Return ``HOST-HASH`` for a folder of this machine: it tells apart whose things are in a shared home folder."""
    return f"{socket.gethostname()}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def private_folder(folder: Path) -> Path:
    """Return the folder, made if it is missing, so that only its user can enter it.

    Raises OSError where it cannot be made, belongs to another user, or is a link: another user may have made one at a
    name that can be foreseen.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is a link or a file, not a folder")
    if found.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, f"it belongs to user {found.st_uid}, not to us")
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def log_path(run: Path, model: str, replica: str, node_rank: int) -> Path:
    """Log file of one rank; its folder is made. A model's newest ``MAX_LOGGED_REPLICAS`` and those in use stay."""
    folder = run / "logs" / model / replica
    folder.mkdir(parents=True, exist_ok=True)
    _forget_oldest(folder.parent, folder)
    return folder / f"rank{node_rank}.log"


def open_files() -> Iterator[Path]:
    """Yield the files that processes of this user have open, resolved."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process ended, or is another user's
            for link in list((process / "fd").iterdir()):
                with contextlib.suppress(OSError):  # it was closed
                    yield link.readlink()


def _forget_oldest(model_folder: Path, new: Path) -> None:
    """Remove the logs that were written to longest ago, but not the new folder, and none that a process has open."""
    oldest = sorted(model_folder.iterdir(), key=_written_s, reverse=True)[MAX_LOGGED_REPLICAS:]
    in_use = {new.resolve(), *(path.parent for path in open_files())} if oldest else set()
    for folder in oldest:
        if folder.resolve() not in in_use:
            shutil.rmtree(folder, ignore_errors=True)


def _written_s(folder: Path) -> float:
    """Return when something was last written there; 0 where another start of the model removed the folder meanwhile."""
    newest_s = 0.0
    with contextlib.suppress(OSError):
        newest_s = folder.stat().st_mtime
        for file in folder.iterdir():
            newest_s = max(newest_s, file.stat().st_mtime)
    return newest_s
