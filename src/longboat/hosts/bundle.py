"""``longboat bundle``: one folder with everything that hosts without a network need."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from longboat.core.errors import TransferError, UserInputError
from longboat.engines.environments.engine_lock import (
    ENGINE_PYTHON,
    TORCH_CPU_VARIABLE,
    Uv,
    recipe_of,
    shipped_lock,
    with_torch_cpu,
)
from longboat.engines.environments.installer import parse_engine, request_for
from longboat.engines.environments.package_sources import PackageSources
from longboat.hosts.plan.wanted import wheel_python
from longboat.hosts.remote.source import LOCK, lock_of, uv_program

__all__ = ("BundleRequest", "make_bundle")

DOWNLOAD_S = 3600.0
PYTHON_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRequest:
    """What goes into a bundle."""

    folder: Path
    wheel: Path
    # Python of Longboat on the hosts: 3.11.
    python: str
    engines: Sequence[str] = ()
    # Platform of the engines; empty: that of this machine.
    platform: str = ""
    with_python: bool = False


def make_bundle(request: BundleRequest, sources: PackageSources, tell: Callable[[str], None]) -> int:
    """Make the bundle and return its bytes. A bundle that was cut is completed by the same command.

    Raises UserInputError for a folder with other files or one that cannot be written, TransferError where packages do
    not arrive.
    """
    try:
        _require_fit(request)
        lock = lock_of(request.wheel, "--wheel")
        locks = [_engine_lock(text, request.platform) for text in request.engines]
        return _filled(request, lock, locks, sources, tell)
    except OSError as error:
        what = f"the bundle cannot be written: {error.filename or request.folder}: {error.strerror}"
        raise UserInputError(what, hint="name another folder, or make room there") from error


def _filled(
    request: BundleRequest, lock: str, locks: Sequence[Path], sources: PackageSources, tell: Callable[[str], None]
) -> int:
    folder, wheels = request.folder, request.folder / "wheels"
    wheels.mkdir(parents=True, exist_ok=True)
    kept = wheels / request.wheel.name
    if not (kept.exists() and kept.samefile(request.wheel)):
        shutil.copyfile(request.wheel, kept)
    for other in set(wheels.glob("longboat-*.whl")) - {kept}:
        other.unlink()  # the bundle is of one release
    (folder / LOCK).write_text(lock)
    pip = _Pip(Uv.found(sources, ""), request.python, sources)
    tell("Longboat's packages")
    pip.download(folder / LOCK, wheels)
    pip = _Pip(Uv.found(sources, ""), ENGINE_PYTHON, sources)  # engines have a Python of their own
    for text, path in zip(request.engines, locks, strict=True):
        tell(f"packages of {text}")
        pip.download(path, wheels)
        _download_sources(parse_engine(text)[0], pip, wheels, tell)
    if request.with_python:
        pythons = dict.fromkeys((request.python, *([ENGINE_PYTHON] if locks else [])))
        tell(f"Python {' and '.join(pythons)}")
        uv = Uv.found(sources, "")
        uv.run("python", "install", "--install-dir", str(folder / "python"), *pythons, deadline_s=PYTHON_S)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _download_sources(kind: str, pip: _Pip, wheels: Path, tell: Callable[[str], None]) -> None:
    """Download what hosts compile while they install an engine."""
    if not (sources := recipe_of(kind).sources):
        return
    tell(f"source of {kind}")
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder) / f"sources of {kind}"
        wanted.write_text("".join(f"{source}\n" for source in sources))
        pip.download(wanted, wheels)


def _require_fit(request: BundleRequest) -> None:
    known = {"wheels", "python", LOCK}
    if others := [name for name in _names(request.folder) if name not in known]:
        hint = "name a folder that does not exist yet"
        raise UserInputError(f"{request.folder} holds other files: {', '.join(others[:3])}", hint=hint)
    if not request.wheel.is_file():
        hint = "build one in a checkout: .venv/bin/python -m hatchling build -t wheel"
        raise UserInputError(f"there is no wheel {request.wheel}", hint=hint)
    if (needed := wheel_python(request.wheel.name)) and needed != request.python:
        what = f"{request.wheel.name} is for Python {needed}, not {request.python}"
        raise UserInputError(what, hint=f"write --python {needed}")


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _engine_lock(text: str, platform: str) -> Path:
    kind, version = parse_engine(text)
    wanted = request_for(kind, version, platform=platform)
    if (path := shipped_lock(kind, version, wanted.platform)) is None:
        what = f"Longboat has no lock for {kind} {version} on {wanted.platform}"
        raise UserInputError(what, hint=f"leave out the version: --engine {kind}")
    return path


class _Pip:
    """pip, run by uv: uv itself downloads no wheels without installing them."""

    def __init__(self, uv: Uv, python: str, sources: PackageSources) -> None:
        self._argv = [str(uv_program()), "tool", "run", "--python", python, *uv.arguments, "--from", "pip", "pip"]
        more = with_torch_cpu(sources, os.environ.get(TORCH_CPU_VARIABLE, ""))
        self._env: Mapping[str, str] = {**os.environ, **uv.variables, **_pip_indexes(more)}
        self._more = _pip_words(more)

    def download(self, lock: Path, wheels: Path) -> None:
        """Download what a lock names, with its hashes compared. Raises TransferError."""
        words = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
        argv = [*self._argv, *words, *self._more, "--dest", str(wheels), "--requirement", str(lock)]
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False, env=self._env)
        except subprocess.TimeoutExpired:
            raise TransferError(
                f"the packages of {lock.name} did not arrive within {DOWNLOAD_S:.0f} s",
                hint="check this machine's connection to the package index, and run it again: it continues",
            ) from None
        if done.returncode:
            tail = "\n".join(done.stderr.strip().splitlines()[-8:])
            raise TransferError(
                f"packages of {lock.name} cannot be downloaded:\n{tail}", hint="run it again: it continues"
            )


def _pip_indexes(sources: PackageSources) -> dict[str, str]:
    """Return pip's indexes as variables: an address may hold a password, which arguments would show to all users."""
    found = {"PIP_INDEX_URL": sources.index_url, "PIP_EXTRA_INDEX_URL": " ".join(sources.extra_index_urls)}
    found["PIP_FIND_LINKS"] = " ".join(sources.find_links) if sources.has_addresses else ""
    return {name: value for name, value in found.items() if value}


def _pip_words(sources: PackageSources) -> list[str]:
    """Return pip's own settings of this machine, which the pip of another environment does not read."""
    words = ["--no-index"] if sources.no_index else []
    folders = () if sources.has_addresses else sources.find_links
    words += [word for place in folders for word in ("--find-links", place)]
    return words + [word for host in sources.trusted_hosts for word in ("--trusted-host", host)]
