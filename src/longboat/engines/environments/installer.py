"""Builds engine environments: a lock of exact packages becomes a virtual environment with compiled bytecode.

Extras of one package cannot carry overrides, and an engine's packages must not meet Ray's, so each engine has its own
environment. A marker file is written last; a folder without it is unfinished and is built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from longboat.core.errors import ClusterError, TransferError, UserInputError
from longboat.engines.environments import engine_lock
from longboat.engines.environments.bytecode import compile_modules, share_bytecode
from longboat.engines.environments.engine_lock import ENGINE_PYTHON, Uv
from longboat.engines.environments.environment import (
    MARKER,
    InstalledEnvironment,
    default_platform,
    engines_folder,
    environment_at,
    read_marker,
)
from longboat.engines.environments.package_sources import PackageSources
from longboat.engines.environments.removal import check_unused
from longboat.engines.registry import adapter_for, installable
from longboat.file_lock import FileLock

__all__ = ("InstallRequest", "Reporter", "install", "parse_engine", "request_for")

_INSTALL_DEADLINE_S = 3600.0
_PYTHON_DEADLINE_S = 600.0  # uv may have to fetch the interpreter
_SYNC_DEADLINE_S = 600.0


class Reporter(Protocol):
    """A receiver of an installation's progress."""

    def step(self, text: str) -> None:
        """Report that a new step began and the one before is done."""

    def note(self, text: str) -> None:
        """Report something that the user should know; the installation continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRequest:
    """The environment to install."""

    kind: str
    version: str
    platform: str
    python: str = ENGINE_PYTHON  # interpreter or version for the environment
    name: str = ""  # name of its folder; empty: the default

    @property
    def folder_name(self) -> str:
        return self.name or f"{self.kind}-{self.version}-{self.platform}"


def parse_engine(text: str) -> tuple[str, str]:
    """Split ``vllm`` or ``vllm@0.32.0`` into engine and version.

    Raises UserInputError for an engine that is not installed this way, or a malformed version.
    """
    kind, at, version = text.partition("@")
    known = installable()
    if kind not in known:
        raise UserInputError(f"engine {kind!r} cannot be installed", hint=f"known engines: {', '.join(known)}")
    tested = engine_lock.recipe_of(kind).version
    version = version if at else tested
    if not re.fullmatch(r"[0-9][A-Za-z0-9.+!_-]*", version):
        raise UserInputError(f"{version!r} is not a version", hint=f"for example {kind}@{tested}")
    return kind, version


def request_for(
    kind: str, version: str, *, platform: str = "", python: str = ENGINE_PYTHON, name: str = ""
) -> InstallRequest:
    """Return a checked request. An empty platform means the platform of this machine.

    Raises UserInputError for an unknown platform, or a name that is not a plain folder name.
    """
    platform = platform or _platform_here(kind)
    known = engine_lock.recipe_of(kind).distributions
    if platform not in known:
        raise UserInputError(f"{kind} has no platform {platform!r}", hint=f"its platforms: {', '.join(known)}")
    if name and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UserInputError(f"{name!r} is not a valid name", hint="use letters, digits, dots, dashes and underscores")
    return InstallRequest(kind=kind, version=version, platform=platform, python=python, name=name)


def install(
    request: InstallRequest,
    *,
    home: Path,
    sources: Callable[[], PackageSources],
    torch_cpu: str,
    report: Reporter,
    force: bool = False,
) -> InstalledEnvironment:
    """Build the environment, or do nothing where the same one already exists.

    sources: called only when something must be built
    torch_cpu: folder or index that has PyTorch's CPU build, in addition to ``sources``; empty: ``sources`` have it
    force: also build where processes use the environment; they keep what they have loaded, and fail at the next import
    Raises UserInputError where the request cannot be met, ClusterError where the disk is full or processes use what
    would be built again, TransferError where packages do not arrive.
    """
    folder = engines_folder(home) / request.folder_name
    with _only_one(folder, report):
        if present := _present(folder, request):
            return present
        if not force:
            check_unused(folder)
        recipe = engine_lock.recipe_of(request.kind)
        _check_space(folder, recipe.free_bytes[request.platform])
        uv = Uv.found(sources(), torch_cpu if request.platform == "cpu" and recipe.pins_torch else "")
        (folder / MARKER).unlink(missing_ok=True)
        _build(request, folder, uv, report)
        return _mark(folder, request)


def _build(request: InstallRequest, folder: Path, uv: Uv, report: Reporter) -> None:
    report.step(f"making a Python {request.python} environment")
    python = _make_environment(request.python, folder, uv)
    lock = _lock(request, folder, uv, report)
    recipe = engine_lock.recipe_of(request.kind)
    if request.platform == "cpu" and recipe.pins_torch:
        report.step("looking for PyTorch's CPU build")
        engine_lock.check_torch_cpu(lock, python, uv)
    report.step(f"installing {engine_lock.num_packages(lock)} packages")
    uv.run("pip", "sync", "--quiet", "--require-hashes", "--python", python, str(lock), deadline_s=_INSTALL_DEADLINE_S)
    report.step("compiling bytecode")
    share_bytecode(folder)
    compile_modules(python, folder)
    if recipe.finish is not None:
        recipe.finish(folder, report.step)


def _platform_here(kind: str) -> str:
    """Return the platform of this machine, or the only one that the engine has."""
    known = tuple(engine_lock.recipe_of(kind).distributions)
    return known[0] if len(known) == 1 else default_platform()


def _make_environment(python: str, folder: Path, uv: Uv) -> str:
    """Make an empty virtual environment and return its interpreter."""
    words = ("--quiet", "--clear", "--no-project", "--python", python)
    try:
        uv.run("venv", *words, str(folder), deadline_s=_PYTHON_DEADLINE_S)
    except TransferError as error:
        hint = "install that Python on this machine, or name an interpreter with --python"
        raise UserInputError(f"cannot create a Python {python} environment: {error.message}", hint=hint) from error
    return str(folder / "bin" / "python")


def _lock(request: InstallRequest, folder: Path, uv: Uv, report: Reporter) -> Path:
    """Return the shipped lock of this version, or one resolved now."""
    if shipped := engine_lock.shipped_lock(request.kind, request.version, request.platform):
        return shipped
    report.note(
        f"Longboat has no lock for {request.kind} {request.version} on {request.platform} and is not tested with it"
    )
    report.step("resolving its packages")
    path = folder / "longboat-engine.lock"
    engine_lock.resolve(request.kind, request.version, request.platform, path, uv, python=request.python)
    return path


def _present(folder: Path, request: InstallRequest) -> InstalledEnvironment | None:
    if (found := read_marker(folder)) is None:
        return None
    item, fields = found
    same = fields.get("recipe") == _recipe(request) and fields.get("fingerprint") == item.environment.fingerprint
    return item if same and not adapter_for(request.kind).lacking(item.environment) else None


def _mark(folder: Path, request: InstallRequest) -> InstalledEnvironment:
    environment = environment_at(request.kind, folder)
    created_at = datetime.now(UTC).isoformat(timespec="seconds")
    told = {
        "kind": environment.kind,
        "distribution": environment.distribution,
        "version": environment.version,
        "platform": environment.platform,
        "python": environment.python,
        "fingerprint": environment.fingerprint,
        "recipe": _recipe(request),
        "created_at": created_at,
    }
    partial = folder / f"{MARKER}.partial"
    partial.write_text(json.dumps(told, indent=2) + "\n")
    if problem := _sync_problem(partial):  # the marker is a promise of all files beside it
        what = f"what was installed in {folder} could not be written to the disk: {problem}"
        raise ClusterError(what, hint="look at the disk (dmesg), then install again")
    partial.replace(folder / MARKER)
    return InstalledEnvironment(folder.name, folder, created_at, environment)


def _sync_problem(file: Path) -> str:
    """Write all that its file system holds in memory to the disk, and return why that failed, if it did."""
    try:
        command = ["sync", "--file-system", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SYNC_DEADLINE_S, check=False)
    except FileNotFoundError:
        os.sync()  # it tells of no failure
        return ""
    except subprocess.TimeoutExpired:
        return f"it took longer than {_SYNC_DEADLINE_S:.0f} s"
    return (done.stderr.strip() or f"sync ended with {done.returncode}") if done.returncode else ""


def _recipe(request: InstallRequest) -> str:
    """Return a digest that changes when the same request would build something else."""
    shipped = engine_lock.shipped_lock(request.kind, request.version, request.platform)
    finish = engine_lock.recipe_of(request.kind).finish_recipe
    parts = [
        finish,
        request.kind,
        request.version,
        request.platform,
        request.python,
        shipped.read_text() if shipped else "",
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _check_space(folder: Path, needed_bytes: int) -> None:
    free_bytes = shutil.disk_usage(folder.parent).free
    if free_bytes < needed_bytes:
        what = f"{folder.parent} has {free_bytes / 1e9:.1f} GB free; the engine needs {needed_bytes / 1e9:.0f} GB"
        raise ClusterError(what, hint="free some space, or set LONGBOAT_HOME to a folder on a larger disk")


def _only_one(folder: Path, report: Reporter) -> FileLock:
    """Hold the environment's lock file; a second installation of the same environment waits for the first."""
    waiting = "waiting for another installation of the same environment"
    return FileLock.held(folder.parent / f".{folder.name}.lock", lambda: report.step(waiting))
