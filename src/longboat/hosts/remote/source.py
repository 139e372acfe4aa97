"""What the operator's machine has for the hosts: a wheel, a requirement or a bundle, and its digest."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from longboat.core.errors import Problem, UserInputError
from longboat.hosts.plan.wanted import wheel_python
from longboat.spec.files.hosts_file import HostsFile

__all__ = ("LOCK", "Source", "lock_of", "read_source", "uv_program")

LOCK = "longboat.lock"
WHEEL = re.compile(r"longboat-([0-9][^-]*)-.*\.whl")
LOCKED_RAY = re.compile(r"^ray==(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a release comes from."""

    version: str
    python: str
    digest: str
    # The lock of Longboat's own packages.
    lock: str
    # Longboat's wheel, in the bundle or by itself; None where the index has it.
    wheel: Path | None = None
    # The bundle's folder.
    bundle: Path | None = None
    # Package index that hosts use; empty: their own.
    index_url: str = ""

    @property
    def runtime(self) -> str:
        """Return the versions that all nodes of a cluster must share, for people; empty where the lock has no Ray."""
        found = LOCKED_RAY.search(self.lock)
        return f"Ray {found[1]} and Python {self.python}" if found else ""

    @property
    def brings_python(self) -> bool:
        """Whether the bundle holds a Python."""
        return self.bundle is not None and (self.bundle / "python").is_dir()

    def requirement(self, parcel: str) -> str:
        """Return what uv installs on a host. parcel: the folder of the release's parcel there"""
        if self.wheel is None:
            return f"longboat=={self.version}"
        return f"{parcel}/wheels/{self.wheel.name}"

    @contextmanager
    def parcel(self) -> Iterator[Path]:
        """Give the folder that is copied to each host."""
        if self.bundle is not None:
            yield self.bundle
            return
        with TemporaryDirectory(prefix="longboat-parcel-") as name:
            folder = Path(name)
            (folder / LOCK).write_text(self.lock)
            (folder / "wheels").mkdir()
            if self.wheel is not None:
                shutil.copyfile(self.wheel, folder / "wheels" / self.wheel.name)
            yield folder


def read_source(file: HostsFile, folder: Path) -> Source:
    """Read the file's ``install``. folder: where its relative paths start. Raises UserInputError."""
    install = file.install
    if install.index:
        return replace(_of_index(install.index, file.python), index_url=install.index_url)
    if install.wheel:
        wheel = _wheel_at(folder / install.wheel, "install.wheel")
        lock = lock_of(wheel, "install.wheel")
        return replace(_source(wheel, lock, file.python, bundle=None), index_url=install.index_url)
    bundle = folder / install.bundle
    found = sorted((bundle / "wheels").glob("longboat-*.whl"))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise _wrong("install.bundle", f"{bundle} holds several releases: {names}", "make the bundle again")
    if not found or not (bundle / LOCK).is_file():
        hint = "make it: longboat bundle FOLDER --wheel WHEEL"
        raise _wrong("install.bundle", f"{bundle} is not a bundle of Longboat", hint)
    return _source(found[-1], (bundle / LOCK).read_text(), file.python, bundle=bundle)


def lock_of(wheel: Path, where: str) -> str:
    """Return the lock that a wheel of Longboat carries. Raises UserInputError where there is none.

    where: the field or the option that names the wheel
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.read(f"longboat/hosts/{LOCK}").decode()
    except (zipfile.BadZipFile, KeyError, OSError) as error:
        hint = "build it again in a checkout: .venv/bin/python -m hatchling build -t wheel"
        raise _wrong(where, f"{wheel} is not a wheel of Longboat: {error}", hint) from None


def uv_program() -> Path:
    """Return uv's program on this machine, which every host gets."""
    from uv import find_uv_bin

    return Path(find_uv_bin())


def _of_index(requirement: str, python: str) -> Source:
    name, _, version = requirement.replace(" ", "").partition("==")
    if name not in ("longboat", "longboat[cluster]") or not version:
        raise _wrong("install.index", f"{requirement!r} names no version", "write index: longboat==0.1.0")
    lock = files("longboat.hosts").joinpath(LOCK).read_text()
    digest = _digest(requirement.encode(), lock.encode(), python.encode())
    return Source(version=version, python=python, digest=digest, lock=lock)


def _source(wheel: Path, lock: str, python: str, *, bundle: Path | None) -> Source:
    needed = wheel_python(wheel.name)
    if needed and needed != python:
        hint = f"write python: '{needed}', or build the wheel with Python {python}"
        raise _wrong("python", f"{wheel.name} is for Python {needed}, and python is {python}", hint)
    found = WHEEL.fullmatch(wheel.name)
    version = found[1] if found else "?"
    told = [wheel.read_bytes(), lock.encode(), python.encode()]
    if bundle is not None:
        told += [path.name.encode() for path in sorted((bundle / "wheels").iterdir())]
    return Source(version=version, python=python, digest=_digest(*told), lock=lock, wheel=wheel, bundle=bundle)


def _wheel_at(path: Path, where: str) -> Path:
    if not path.is_file() or not WHEEL.fullmatch(path.name):
        hint = "build one in a checkout: .venv/bin/python -m hatchling build -t wheel"
        raise _wrong(where, f"{path} is not a wheel of Longboat", hint)
    return path


def _digest(*parts: bytes) -> str:
    total = hashlib.sha256()
    for part in (platform.machine().encode(), *parts):
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()[:16]


def _wrong(where: str, what: str, hint: str) -> UserInputError:
    return UserInputError(f"{where}: {what}", hint=hint, problems=(Problem(where=where, what=what, hint=hint),))
