"""Decides about a node before anything starts: address, ports, token, folders; mistakes are reported here."""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from longboat.cluster.host.cluster_token import default_token_file
from longboat.cluster.host.hardware import node_cpus, tasks_limit
from longboat.cluster.host.nic import head_address, route_source
from longboat.cluster.host.ray_command import RayOptions
from longboat.core.errors import ClusterError, UserInputError
from longboat.disk_sync import sync
from longboat.folders import home_folder, node_folder, private_folder
from longboat.user import user_home

__all__ = ("DEFAULT_PORT", "NodeRequest", "PortClaims", "decide", "taken_ports", "token_path")

DEFAULT_PORT = 6379
_PREFERRED_PORTS = {"metrics": 9091, "dashboard_agent": 52365, "dashboard": 8265}
_OTHER_PORTS = range(20_000, 32_768)
"""Where a preferred port is taken; Linux gives none of these to outgoing connections while Ray starts."""
_WORKER_PORTS = range(10_002, 20_000)
"""Ray gives these to its worker processes, and refuses to start a head on one of them."""
_NUM_TRIES = 50
_MAX_TEMP_DIR = 107 - len("/session_2026-01-01_00-00-00_000000_1234567/sockets/plasma_store")
_REACH_DEADLINE_S = 5.0
_FEWEST_TASKS = 400
"""Processes and threads of a head with one replica that is not split: 382 at its start, on two CPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """What a person asks of ``node start``; empty and None leave the choice to us.

    join: ``ADDRESS[:PORT]`` of a cluster to join; empty: this node is the head of a new one
    is_local: a head that only this machine can reach
    storage: folder for the head's durable state; empty: in the home folder
    """

    join: str = ""
    is_local: bool = False
    address: str = ""
    port: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    num_cpus: float | None = None
    num_gpus: float | None = None
    token_file: str = ""
    storage: str = ""
    started_by_up: bool = False


def token_path(explicit: str = "", env: Mapping[str, str] = os.environ) -> Path:
    """Return the token's file: the given one, else Ray's variable, else Ray's default if it exists, else Longboat's."""
    if chosen := explicit or env.get("RAY_AUTH_TOKEN_PATH"):
        return Path(chosen).expanduser().absolute()
    rays = default_token_file(user_home())
    return rays if rays.exists() else home_folder(env) / "cluster_token"


class PortClaims:
    """Ports that this process chose and Ray has not bound yet: another start on this machine passes them over.

    Ray binds them seconds later, and two starts at a time would choose alike. A claim is an abstract socket: the kernel
    releases it with its process, and each network namespace has its own.
    """

    def __init__(self) -> None:
        self._claims: list[socket.socket] = []

    def near(self, address: str, preferred: int) -> int:
        """Claim ``preferred`` where it is free on ``address``, else any free port."""
        for port in (preferred, *random.SystemRandom().sample(_OTHER_PORTS, _NUM_TRIES)):
            if _is_free(address, port) and self._takes(port):
                return port
        raise ClusterError(f"no TCP port is free on {address}", hint="see which processes hold them: ss -ltnp")

    def _takes(self, port: int) -> bool:
        if sys.platform != "linux":
            return True
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0longboat port {port}")
        except OSError:
            claim.close()
            return False
        self._claims.append(claim)
        return True

    def __enter__(self) -> PortClaims:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for claim in self._claims:
            claim.close()


def _storage(given: str) -> Path | None:
    """Return the folder that was given; None where none was. The node starts again from any working directory.

    Raises UserInputError where it cannot be a folder: Ray would try for a minute, and not say why.
    """
    if not given:
        return None
    folder = Path(given).expanduser().absolute()
    above = next(path for path in (folder, *folder.parents) if path.exists())
    if not above.is_dir():
        raise UserInputError(
            f"--storage {given}: {above} is not a folder", hint="name a folder on a disk of this machine"
        )
    return folder


def decide(request: NodeRequest, run: Path, claims: PortClaims) -> RayOptions:
    """Decide everything about the node; nothing is started, but a head's token may be made."""
    role, address, gcs_address = _addresses(request, claims)
    if role == "head":
        _refuse_few_tasks(tasks_limit())
    token = token_path(request.token_file) if request.token_file or not request.is_local else run / "token"
    _ensure_token(token, may_make=role == "head")
    storage = (_storage(request.storage) or node_folder(run) / "gcs") / gcs_address.replace(":", "_")
    purposes = ("metrics", "dashboard_agent", *(("dashboard",) if role == "head" else ()))
    return RayOptions(
        role="head" if role == "head" else "worker",
        address=address,
        gcs_address=gcs_address,
        run=str(run),
        temp_dir=_temp_dir(run),
        token_file=str(token),
        storage=str(storage) if role == "head" else "",
        ports={purpose: claims.near(address, _PREFERRED_PORTS[purpose]) for purpose in purposes},
        labels=request.labels,
        num_cpus=float(node_cpus()) if request.num_cpus is None else request.num_cpus,
        num_gpus=request.num_gpus,
        is_local=_is_local(request, address),
    )


def taken_ports(options: RayOptions) -> tuple[int, ...]:
    """Return those of a node's ports that are in use now, in the order of their numbers."""
    own = [int(options.gcs_address.rpartition(":")[2])] if options.role == "head" else []
    return tuple(port for port in sorted([*own, *options.ports.values()]) if not _is_free(options.address, port))


def _is_free(address: str, port: int) -> bool:
    try:
        socket.create_server((address, port)).close()
    except OSError:
        return False
    return True


def _is_local(request: NodeRequest, address: str) -> bool:
    """Return whether only this machine can reach the node: at its loopback address, or because it was asked for."""
    return request.is_local or address == "127.0.0.1"


def _addresses(request: NodeRequest, claims: PortClaims) -> tuple[str, str, str]:
    """(role, own address, address of the cluster)."""
    _refuse_ipv6(request)
    if not request.join:
        address = "127.0.0.1" if request.is_local else request.address or head_address()
        port = claims.near(address, DEFAULT_PORT) if request.is_local and request.port is None else request.port
        port = DEFAULT_PORT if port is None else port
        if port in _WORKER_PORTS and not _is_local(request, address):
            taken = f"{_WORKER_PORTS[0]} to {_WORKER_PORTS[-1]}"
            what = f"the head cannot listen on port {port}: Ray's worker processes take the ports {taken}"
            raise UserInputError(what, hint=f"leave --port out ({DEFAULT_PORT}), or choose another one")
        _refuse_taken(address, port)
        return "head", address, f"{address}:{port}"
    host, _, port_text = request.join.partition(":")
    if not host or (port_text and not (port_text.isdecimal() and 0 < int(port_text[:6]) <= 65535)):
        raise UserInputError(f"{request.join!r} is not an address", hint="write --join ADDRESS or --join ADDRESS:PORT")
    port = int(port_text) if port_text else DEFAULT_PORT
    address = request.address or route_source(host)
    _refuse_unreachable(host, port)
    return "worker", address, f"{socket.gethostbyname(host)}:{port}"


def _refuse_few_tasks(limit: int) -> None:
    if 0 < limit < _FEWEST_TASKS:
        raise UserInputError(
            f"only {limit} processes and threads are allowed here (pids.max), and a head needs {_FEWEST_TASKS}",
            hint="allow 4096: --pids-limit of docker and podman, TasksMax= of a service, podPidsLimit of a kubelet",
        )


def _refuse_ipv6(request: NodeRequest) -> None:
    for option, address in (("--join", request.join), ("--address", request.address)):
        if address.count(":") > 1:
            raise UserInputError(
                f"{option}: {address} is an IPv6 address, and the nodes of a cluster reach each other by IPv4",
                hint="give the machine's IPv4 address; in Kubernetes, use a cluster with IPv4 or two stacks",
            )


def _refuse_taken(address: str, port: int) -> None:
    try:
        with socket.create_server((address, port)):
            return
    except OSError as error:
        raise UserInputError(
            f"the head cannot listen on {address}:{port}: {error.strerror}",
            hint="give another --port, or an --address that this machine has",
        ) from error


def _refuse_unreachable(host: str, port: int) -> None:
    try:
        with socket.create_connection((host, port), timeout=_REACH_DEADLINE_S):
            return
    except OSError as error:
        raise ClusterError(
            f"no cluster answers at {host}:{port}: {error.strerror or 'no answer'}",
            hint="start it there with longboat node start --head, and let this machine through its firewall",
        ) from error


def _temp_dir(run: Path) -> str:
    """Ray's folder; a short name stands in where sockets in the run folder would have too long ones (107 bytes)."""
    folder = run / "ray"
    if len(str(folder)) > _MAX_TEMP_DIR:
        folder = Path("/tmp") / f"longboat-ray-{hashlib.sha256(str(run).encode()).hexdigest()[:10]}"  # noqa: S108
    try:
        return str(private_folder(folder))
    except OSError as error:
        raise ClusterError(
            f"{folder} cannot be Ray's folder: {error.strerror}", hint="set LONGBOAT_RUN to a shorter path"
        ) from error


def _ensure_token(path: Path, *, may_make: bool) -> None:
    if path.exists():
        found = path.stat()
        if found.st_mode & 0o077:
            raise UserInputError(f"others can read the cluster's token in {path}", hint=f"chmod 600 {path}")
        if not found.st_size:
            hint = "copy it from another node of the cluster; for a new cluster, remove the file"
            raise UserInputError(f"the cluster's token is not in its file: {path} is empty", hint=hint)
        return
    if not may_make:
        raise UserInputError(
            f"the cluster's token is not here: there is no file {path}",
            hint="copy it from the head (longboat node start --head said where it is), or give --token-file",
        )
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        sync(draft)  # a power cut could leave an empty file, with which no node starts
        try:
            os.link(draft, path)
        except FileExistsError:  # another start was quicker
            return
        except OSError:  # of a file system without links
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
