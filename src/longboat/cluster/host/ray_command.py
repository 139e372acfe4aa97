"""How a node starts Ray: from what Longboat decided about the node to a command line and an environment. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from longboat.core.errors import UserInputError

__all__ = ("CONNECT_ENV", "LOOPBACK_ENV", "NODE_MARK", "RayOptions", "parse_labels", "ray_argv", "ray_env")

NODE_MARK = "LONGBOAT_NODE"
"""Environment mark of everything that runs on behalf of a node; its value is the node's run folder."""

CONNECT_ENV = {
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",  # hosts bring their own Python; Ray's default: the same patch
}
"""Variables of every process that starts a node or connects to a cluster."""

LOOPBACK_ENV = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""A node at 127.0.0.1 keeps that address, as where Ray makes no clusters; else it would take the default route's."""

_RECONNECT_S = 3600
_HEALTH = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
"""A killed node counts as dead after about 3 s, one that is cut off after about 6 s (Ray's defaults: 15 and 65 s)."""

_QUIET = {
    "RAY_task_events_report_interval_ms": "0",  # a history of every call, which is kept for Ray's own state API only
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.25",
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "10000",
    "REPORTER_UPDATE_INTERVAL_MS": "15000",
}
"""An idle cluster takes less of a core. Serve looks at what it runs four times a second (Ray's default: ten times).

Each replica, and each handle of one, reports its counts as often as Ray exports them (default: ten times a second).
The dashboard's agent reads the memory and CPU time of every worker process as often as Prometheus asks (default: 5 s).
"""

_LABEL_KEY = re.compile(r"^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?$")
_LABEL_VALUE = re.compile(r"^([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """Everything that is decided about a node before Ray starts on it.

    role: ``head`` | ``worker``; address: by which the others reach this node
    gcs_address: ``ADDRESS:PORT`` of the cluster, on the head its own
    run: the node's run folder; temp_dir: Ray's folder of sockets and logs; storage: the head's durable state
    ports: purpose → port: ``metrics``, ``dashboard_agent``, and on the head ``dashboard``
    is_local: for this machine only: worker processes take any free ports, so that several clusters fit on it
    num_cpus, num_gpus: None lets Ray count
    """

    role: Literal["head", "worker"]
    address: str
    gcs_address: str
    run: str
    temp_dir: str
    token_file: str
    storage: str = ""
    ports: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    num_cpus: float | None = None
    num_gpus: float | None = None
    object_store_bytes: int = 512 << 20
    is_local: bool = False


def parse_labels(words: list[str]) -> dict[str, str]:
    """``key=value`` words as a mapping, in the syntax of Kubernetes' labels. Raises UserInputError for others."""
    labels = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not _LABEL_KEY.match(key) or not _LABEL_VALUE.match(value):
            raise UserInputError(
                f"{word!r} is not a label",
                hint="write KEY=VALUE with letters, digits and - _ . in between, as gpu=h100",
            )
        labels[key] = value
    return labels


def ray_argv(options: RayOptions) -> list[str]:
    """Command line of ``ray start`` in the foreground. Holds no secret."""
    role = _head_flags(options) if options.role == "head" else ["--address", options.gcs_address]
    flags = {
        "--node-ip-address": options.address,
        "--temp-dir": options.temp_dir,
        "--metrics-export-port": str(options.ports["metrics"]),
        "--dashboard-agent-listen-port": str(options.ports["dashboard_agent"]),
        "--object-store-memory": str(options.object_store_bytes),
        # It would read all logs again and again, and send them to drivers, none of which asks for them.
        "--include-log-monitor": "false",
    }
    argv = [sys.executable, "-m", "longboat.cluster.host.ray_start", "--block", "--disable-usage-stats", *role]
    argv += [word for pair in flags.items() for word in pair]
    if options.is_local:
        argv += ["--min-worker-port", "0", "--max-worker-port", "0"]
    if options.num_cpus is not None:
        argv += ["--num-cpus", f"{options.num_cpus:g}"]
    if options.num_gpus is not None:
        argv += ["--num-gpus", f"{options.num_gpus:g}"]
    if options.labels:
        argv += ["--labels", ",".join(f"{key}={value}" for key, value in options.labels.items())]
    return argv


def _head_flags(options: RayOptions) -> list[str]:
    flags = {
        "--port": options.gcs_address.rpartition(":")[2],
        "--include-dashboard": "true",
        "--dashboard-host": options.address,
        "--dashboard-port": str(options.ports["dashboard"]),
    }
    return ["--head", "--no-monitor", *(word for pair in flags.items() for word in pair)]


def ray_env(options: RayOptions) -> dict[str, str]:
    """Variables that Ray and all it starts on this node are given, over the caller's own."""
    env = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": options.token_file,
        "RAY_USAGE_STATS_ENABLED": "0",
        **CONNECT_ENV,
        **_QUIET,
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(_RECONNECT_S),
        "RAY_prestart_worker_first_driver": "0",  # one worker for each core, of which few find work here
        "RAY_worker_niceness": "0",  # workers start the engines, which are not background work
        "RAY_preload_python_modules": "longboat.cluster.ray.calm_imports",
        "LONGBOAT_RUN": options.run,
        NODE_MARK: options.run,
    }
    if options.is_local:
        env |= LOOPBACK_ENV
    if options.role == "head":
        env |= {**_HEALTH, "RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": options.storage}
    return env
