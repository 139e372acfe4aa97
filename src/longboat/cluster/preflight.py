"""What a node says before anything is started on it: are the models, the engines and the gateway's port there?"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ("EngineFinding", "NodeFindings", "PathFinding", "PreflightRequest", "inspect_node")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightRequest:
    """paths: local model folders; engines: model → its ``engine`` entry; gateway: (host, port) or None."""

    paths: tuple[str, ...]
    engines: Mapping[str, Mapping[str, Any]]
    gateway: tuple[str, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFinding:
    """exists: the folder is there; config: text of its config.json (None: there is none)."""

    exists: bool
    config: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFinding:
    """platform and version of the engine a model would get here; problem and hint where there is none."""

    platform: str = ""
    version: str = ""
    problem: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFindings:
    """One node's answer. port_problem: why the gateway could not listen (empty: it could, or it does already)."""

    hostname: str
    paths: Mapping[str, PathFinding] = field(default_factory=dict)
    engines: Mapping[str, EngineFinding] = field(default_factory=dict)
    port_problem: str = ""


def inspect_node(request: PreflightRequest) -> NodeFindings:
    """Look around on this node; starts nothing, changes nothing."""
    return NodeFindings(
        hostname=socket.gethostname(),
        paths={path: _path(path) for path in request.paths},
        engines={model: _engine(engine) for model, engine in request.engines.items()},
        port_problem=_port_problem(*request.gateway) if request.gateway else "",
    )


def _path(path: str) -> PathFinding:
    folder = Path(path)
    if not folder.is_dir():
        return PathFinding(exists=False)
    try:
        return PathFinding(exists=True, config=(folder / "config.json").read_text())
    except OSError:
        return PathFinding(exists=True)


def _engine(engine: Mapping[str, Any]) -> EngineFinding:
    from longboat.cluster.launch import engine_environment
    from longboat.core.errors import LongboatError

    try:
        environment = engine_environment(engine)
    except LongboatError as error:
        return EngineFinding(problem=error.message, hint=error.hint)
    if environment is None:
        return EngineFinding(platform="cpu")
    return EngineFinding(platform=environment.platform, version=environment.version)


def _port_problem(host: str, port: int) -> str:
    if _is_our_gateway(port):
        return ""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"port {port} is in use on {socket.gethostname()}"
            return f"{host}:{port} cannot be listened on at {socket.gethostname()}: {os.strerror(error.errno or 0)}"
    return ""


def _is_our_gateway(port: int) -> bool:
    from longboat.folders import run_folder

    try:
        record = json.loads((run_folder() / "gateway" / "gateway.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(record.get("port") == port and Path(record["socket"]).exists())
