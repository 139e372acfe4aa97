"""Finds engine environments on this node and reads what is in them, without starting or importing anything.

An environment that Longboat built is a folder ``engines/NAME`` with a marker file, which is written last: a folder
without it is an unfinished installation. An environment of the user's own needs no marker.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from longboat.core.errors import UserInputError
from longboat.engines.contract import EngineEnvironment
from longboat.engines.registry import adapter_for

__all__ = (
    "MARKER",
    "InstalledEnvironment",
    "cuda_is_here",
    "default_platform",
    "engines_folder",
    "environment_at",
    "find_environment",
    "installed_environments",
    "missing_packages",
    "read_marker",
    "version_key",
)

MARKER = "longboat-engine.json"
_SITE_FOLDERS = (
    "lib/python3*/site-packages",
    "lib64/python3*/site-packages",
    "lib/python3*/dist-packages",
    "local/lib/python3*/dist-packages",  # Debian's Python, as in vLLM's container images
)


@dataclass(frozen=True, slots=True)
class InstalledEnvironment:
    """An environment that Longboat built, as its marker describes it."""

    name: str
    folder: Path
    created_at: str
    environment: EngineEnvironment


def engines_folder(home: Path) -> Path:
    """Return the folder under ``home`` that holds one folder for each installed environment."""
    return home / "engines"


def cuda_is_here() -> bool:
    """Return whether this machine has an NVIDIA driver."""
    return Path("/proc/driver/nvidia").exists() or Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()


def default_platform() -> str:
    """Return ``cuda`` where an NVIDIA driver is loaded, else ``cpu``."""
    return "cuda" if cuda_is_here() else "cpu"


def find_environment(kind: str, *, version: str | None, path: str | None, home: Path) -> EngineEnvironment:
    """Find the environment on this node in which engine ``kind`` runs.

    path: folder or interpreter of the user's own environment, or the name of an installed one; wins over everything
    version: version of an installed environment; None: the newest one
    Raises UserInputError where there is none, with the command that installs it.
    """
    if path is not None:
        return environment_at(kind, _named_or_path(path, home))
    if program := adapter_for(kind).program:
        hint = f"write engine: {{kind: {kind}, environment: /srv/{kind}}}, the folder that holds bin/{program}"
        raise UserInputError(f"no package holds {kind}, and the file names no folder with it", hint=hint)
    found = [item for item in installed_environments(home) if item.environment.kind == kind]
    fitting = [item for item in found if version is None or item.environment.version == version]
    if not fitting:
        raise _no_environment(kind, version, found, home)
    return max(fitting, key=_preference).environment


def environment_at(kind: str, path: Path) -> EngineEnvironment:
    """Describe the environment at ``path``: a folder with ``bin/python``, or an interpreter.

    Raises UserInputError where there is no interpreter, or no engine of this kind beside it.
    """
    if program := adapter_for(kind).program:
        return _program_at(kind, path, program)
    python = path / "bin" / "python" if path.is_dir() else path
    if not os.access(python, os.X_OK):
        raise UserInputError(
            f"there is no Python at {python}", hint="give the folder of a virtual environment, or its bin/python"
        )
    versions = _distributions(python.absolute().parent.parent)
    recipe = adapter_for(kind).recipe
    distributions = recipe.distributions if recipe else {}
    name = next((name for name in distributions.values() if _normal(name) in versions), None)
    if name is None:
        raise UserInputError(f"the environment at {path} does not contain {kind}", hint=_install_hint(kind, None))
    return EngineEnvironment(
        kind=kind,
        python=str(python.absolute()),
        distribution=name,
        version=versions[_normal(name)].partition("+")[0],
        platform=_platform_of(name, distributions, versions),
        fingerprint=_fingerprint(python, versions),
    )


def _program_at(kind: str, path: Path, program: str) -> EngineEnvironment:
    """Describe the folder of an engine that is a program: nothing is known of its version before it runs."""
    found = path / "bin" / program if path.is_dir() else path
    if found.name != program or not os.access(found, os.X_OK):
        raise UserInputError(
            f"there is no program {program} at {found}", hint=f"give the folder that holds bin/{program}"
        )
    stat = found.stat()
    stamp = f"{found.resolve()} {stat.st_size} {stat.st_mtime_ns}"
    return EngineEnvironment(
        kind=kind,
        python=str(found.absolute()),
        distribution=program,
        version="0",
        platform=default_platform(),
        fingerprint=hashlib.sha256(stamp.encode()).hexdigest()[:16],
    )


def installed_environments(home: Path) -> list[InstalledEnvironment]:
    """Return every finished environment under ``home``, sorted by name."""
    markers = sorted(engines_folder(home).glob(f"*/{MARKER}"))
    return [found[0] for marker in markers if (found := read_marker(marker.parent)) is not None]


def missing_packages(environment: EngineEnvironment, names: Iterable[str]) -> tuple[str, ...]:
    """Return those of these packages that are not installed in the environment."""
    there = _distributions(Path(environment.python).parent.parent)
    return tuple(name for name in names if _normal(name) not in there)


def version_key(version: str) -> tuple[int, ...]:
    """Return a sort key of a version number; only its numbers count."""
    return tuple(int(digits) for digits in re.findall(r"\d+", version.partition("+")[0]))


def read_marker(folder: Path) -> tuple[InstalledEnvironment, Mapping[str, str]] | None:
    """Return the environment in ``folder`` and its marker's fields; None where it is absent, unfinished or damaged."""
    try:
        fields = json.loads((folder / MARKER).read_text())
        environment = environment_at(fields["kind"], folder)
    except (OSError, ValueError, KeyError, UserInputError):
        return None
    created_at = str(fields.get("created_at", ""))
    return InstalledEnvironment(folder.name, folder, created_at, environment), fields


def _preference(item: InstalledEnvironment) -> tuple[bool, tuple[int, ...], str]:
    environment = item.environment
    return (environment.platform == default_platform(), version_key(environment.version), item.created_at)


def _named_or_path(path: str, home: Path) -> Path:
    """Return the folder of an environment that is named, or the given path. Raises UserInputError for a wrong name."""
    own, named = Path(path).expanduser(), engines_folder(home) / path
    if "/" not in path and (named / MARKER).exists():
        return named
    if "/" in path or own.exists():
        return own
    if named.is_dir():
        hint = "run `longboat engines install` for it again on this node"
        raise UserInputError(f"the environment {named} is unfinished: its installation did not end", hint=hint)
    there = ", ".join(item.name for item in installed_environments(home)) or "none"
    what = f"there is no environment named {path!r} in {engines_folder(home)} (installed: {there})"
    raise UserInputError(what, hint="give the name of an installed one, or the folder of your own")


def _no_environment(kind: str, version: str | None, found: list[InstalledEnvironment], home: Path) -> UserInputError:
    wanted = f"{kind} {version}" if version else kind
    there = ", ".join(item.name for item in found) or "none"
    marked = {marker.parent.name for marker in engines_folder(home).glob(f"*/{MARKER}")}
    damaged = ", ".join(sorted(marked - {item.name for item in installed_environments(home)}))
    there += f"; damaged, or without their Python: {damaged}" if damaged else ""
    message = f"there is no environment for {wanted} in {engines_folder(home)} (installed: {there})"
    return UserInputError(message, hint=_install_hint(kind, version))


def _install_hint(kind: str, version: str | None) -> str:
    wanted = f"{kind}@{version}" if version else kind
    return f"run `longboat engines install {wanted}` on every node, or give the path of your own environment"


def _distributions(prefix: Path) -> dict[str, str]:
    """Map the normalised name of everything installed under ``prefix`` to its version, sorted by name."""
    folders = [folder for pattern in _SITE_FOLDERS for folder in prefix.glob(pattern)]
    found = {}
    for entry in (entry for folder in folders for entry in os.scandir(folder) if entry.name.endswith(".dist-info")):
        name, _, version = entry.name.removesuffix(".dist-info").partition("-")
        found[_normal(name)] = version
    return dict(sorted(found.items()))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _platform_of(distribution: str, distributions: Mapping[str, str], versions: dict[str, str]) -> str:
    if any("+cpu" in versions.get(name, "") for name in (_normal(distribution), "torch")):
        return "cpu"
    return [platform for platform, name in distributions.items() if name == distribution][-1]


def _fingerprint(python: Path, versions: dict[str, str]) -> str:
    lines = [f"{name}=={version}" for name, version in versions.items()]
    return hashlib.sha256("\n".join([str(python.resolve()), *lines]).encode()).hexdigest()[:16]
