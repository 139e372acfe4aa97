"""The node's own record of the cluster it belongs to, in its run folder, and what commands on the node make of it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from longboat.cluster.host.ray_command import LOOPBACK_ENV

__all__ = ("ClusterRecord", "born_ticks", "connect_env", "load_record", "local_cluster", "save_record")

_NAME = "node.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRecord:
    """This node and its cluster.

    role: ``head`` | ``worker``; address, interface: by which the others reach this node
    gcs_address: ``ADDRESS:PORT`` of the cluster; dashboard: ``ADDRESS:PORT`` (head only)
    phase: ``starting`` | ``up`` | ``rejoining`` | ``failed``; detail: why
    runner_pid, runner_born: process that keeps the node, and its start time in the kernel's ticks
    started_by_up: a cluster of this machine only, which ``longboat up`` started and ``longboat down`` ends
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
    metrics_port: int = 0
    started_by_up: bool = False
    phase: str = "starting"
    detail: str = ""
    runner_pid: int = 0
    runner_born: int = 0

    @property
    def is_kept(self) -> bool:
        """Whether the runner lives."""
        return self.runner_pid > 0 and born_ticks(self.runner_pid) == self.runner_born

    def with_runner(self, pid: int) -> ClusterRecord:
        return replace(self, runner_pid=pid, runner_born=born_ticks(pid))


def born_ticks(pid: int) -> int:
    """Return when ``pid`` started, in ticks since boot, which tells reused pids apart; 0 where it does not run."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if stat[0] == "Z" else int(stat[19])


def save_record(record: ClusterRecord) -> None:
    """Write the record whole or not at all."""
    path = Path(record.run) / _NAME
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(asdict(record), indent=1))
    draft.replace(path)


def load_record(run: Path) -> ClusterRecord | None:
    """Read the record in ``run``, whether or not the node still runs. None: there is none, or of another version."""
    try:
        found = json.loads((run / _NAME).read_text())
        known = {field.name for field in fields(ClusterRecord)}
        return ClusterRecord(**{name: value for name, value in found.items() if name in known})
    except (OSError, ValueError, TypeError):
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
