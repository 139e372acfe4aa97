"""The node's own record of the cluster it belongs to, and what commands on the node make of it.

It is written twice: in the run folder, and in the home folder, where it outlives a reboot.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from longboat.cluster.host.ray_command import LOOPBACK_ENV
from longboat.disk_sync import write_whole
from longboat.folders import node_folder
from longboat.processes import boot_id, born_ticks

__all__ = (
    "ClusterRecord",
    "connect_env",
    "forget_record",
    "load_record",
    "local_cluster",
    "save_record",
)

_NAME = "node.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecord:
    """This node and its cluster.

    role: ``head`` | ``worker``; address, interface: by which the others reach this node
    gcs_address: ``ADDRESS:PORT`` of the cluster; dashboard: ``ADDRESS:PORT`` (head only)
    phase: ``starting`` | ``up`` | ``rejoining`` | ``failed`` | ``stopping`` | ``stopped``; detail: why
    runner_pid, runner_born: process that keeps the node, and its start time in the kernel's ticks
    session: POSIX session in which Ray's processes run
    started_by_up: a cluster of this machine only, which ``longboat up`` started and ``longboat down`` ends
    request: what a person asked for when the node was started (``NodeRequest``)
    argv, env: how Ray is started, without secrets
    boot: names the machine's boot; versions: of Longboat, Ray and Python
    """

    role: str
    address: str
    interface: str
    gcs_address: str
    run: str
    temp_dir: str
    token_file: str
    storage: str = ""
    dashboard: str = ""
    started_by_up: bool = False
    phase: str = "starting"
    detail: str = ""
    runner_pid: int = 0
    runner_born: int = 0
    session: int = 0
    request: Mapping[str, Any] = field(default_factory=dict)
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    boot: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_kept(self) -> bool:
        """Whether the runner lives. After a reboot, another process may have its pid, and began as long after boot."""
        is_here = self.runner_pid > 0 and born_ticks(self.runner_pid) == self.runner_born > 0
        return is_here and self.boot in ("", boot_id())

    @property
    def is_ended(self) -> bool:
        """Whether the node was stopped on purpose, so that nothing brings it back by itself."""
        return self.phase in ("stopping", "stopped")

    def with_runner(self, pid: int) -> ClusterRecord:
        return replace(self, runner_pid=pid, runner_born=born_ticks(pid))


def save_record(record: ClusterRecord) -> None:
    """Write the record whole or not at all. Raises OSError where the run folder cannot be written to."""
    text = json.dumps(asdict(record), indent=1)
    _write(Path(record.run), text)
    with contextlib.suppress(OSError):  # a home folder that cannot be written to stops no node
        _write(node_folder(Path(record.run)), text)


def _write(folder: Path, text: str) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(folder / _NAME, text, synced=True)  # a power cut could leave an empty file in the place of both


def forget_record(run: Path) -> None:
    """Remove what says that this machine was a node; the head's state, where there is any, stays."""
    (run / _NAME).unlink(missing_ok=True)
    home = node_folder(run)
    with contextlib.suppress(OSError):
        (home / _NAME).unlink(missing_ok=True)
    for folder in (home / "gcs", home):
        with contextlib.suppress(OSError):  # it holds a state, or was never made
            folder.rmdir()


def load_record(run: Path) -> ClusterRecord | None:
    """Read the record of the node with this run folder, whether or not it still runs.

    None: there is none, or it is of another version.
    """
    return _read(run / _NAME) or _read(node_folder(run) / _NAME)


def _read(path: Path) -> ClusterRecord | None:
    try:
        found = json.loads(path.read_text())
        known = {field.name for field in fields(ClusterRecord)}
        record = ClusterRecord(**{name: value for name, value in found.items() if name in known})
        return replace(record, argv=tuple(record.argv))
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def local_cluster(run: Path) -> ClusterRecord | None:
    """Return the cluster that the node with this run folder belongs to; None where nothing keeps it in one."""
    record = load_record(run)
    return record if record is not None and record.is_kept else None


def connect_env(record: ClusterRecord) -> dict[str, str]:
    """Environment with which Ray, and everything of Longboat, on this node finds the cluster and may use it."""
    env = {
        "RAY_ADDRESS": record.gcs_address,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": record.token_file,
    }
    return env | LOOPBACK_ENV if record.address == "127.0.0.1" else env
