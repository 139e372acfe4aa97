"""The archive of a backup: a compressed tar file with a manifest, whose every file is checked before it is used."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Container, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

import msgspec

from longboat.core.errors import ClusterError, UserInputError, unwritable
from longboat.disk_sync import whole_file
from longboat.folders import open_files
from longboat.spec.types.fleet import FLEET_NAME, MODEL_NAME

__all__ = (
    "FLEET_FILE",
    "Manifest",
    "Restored",
    "check_folder_of",
    "files_of",
    "put_back",
    "put_file",
    "read_archive",
    "write_archive",
)

FORMAT = 1
FLEET_FILE = "fleet.yaml"
"""The running fleet, as ``longboat up`` takes it."""
MANIFEST = "manifest.json"
KEPT = re.compile(
    r"keys/[^/.][^/]*\.json|catalog/[^/]+\.toml|measured\.csv|calibration\.toml|cluster_token|gateway[^/]*/.+"
)
"""Files of the home folder that nothing makes again."""
COMMAND = re.compile(rf"longboat (scale {MODEL_NAME.pattern} \d+|pause {MODEL_NAME.pattern})", re.ASCII)
"""Commands that a backup may ask for."""
PASSING = re.compile(r".*(-wal|-shm|\.lock|\.before-[0-9TZ]+)")
"""Names of files that belong to a process, or that ``restore`` put aside."""
SQLITE = b"SQLite format 3\0"
MOST_BYTES = 4 << 30
"""Most that an archive may hold: what it promises is held in memory while it is checked."""

Fate = Literal["new", "same", "replaced"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an archive holds.

    made: when, in ISO 8601; owner: the machine's name and a hash of its folder, after which usage is named
    files: path in the archive → SHA-256 in hexadecimal
    commands: after ``longboat up`` of the fleet's file, they give models the numbers that commands gave them
    """

    format: int
    longboat: str
    made: str
    owner: str
    fleet: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Restored:
    """What became of one file; before: where the file that stood there is now."""

    path: Path
    fate: Fate
    before: Path | None = None


def files_of(home: Path) -> dict[str, bytes]:
    """Return the files of a home folder that belong into a backup: path → content.

    A database is copied as SQLite copies it, so that it is whole while gateways write to it; a damaged one as it is.
    """
    folders = (home, home / "keys", home / "catalog", *home.glob("gateway*"), *home.glob("gateway/*/"))
    paths = sorted({path for folder in folders if folder.is_dir() for path in folder.iterdir() if path.is_file()})
    names = {path.relative_to(home).as_posix(): path for path in paths if not PASSING.fullmatch(path.name)}
    return {name: _content(path) for name, path in names.items() if KEPT.fullmatch(name)}


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(len(SQLITE))
        if head != SQLITE:
            return head + file.read()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "copy"
        try:
            with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
        except sqlite3.Error:
            return path.read_bytes()
        return copy.read_bytes()


def check_folder_of(target: Path) -> None:
    """Raise UserInputError where the folder for an archive does not exist."""
    if not target.parent.is_dir():
        hint = f"mkdir -p {target.parent}, or name another file"
        raise UserInputError(f"{target} cannot be written: {os.strerror(errno.ENOENT)}", hint=hint)


def write_archive(target: Path, manifest: Manifest, files: Mapping[str, bytes]) -> None:
    """Write an archive whole or not at all, readable by its owner only. Raises UserInputError where it cannot be."""
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    head = msgspec.json.format(msgspec.json.encode(asdict(manifest) | {"files": sums}), indent=1)
    try:
        with (
            whole_file(target, mode=0o600, synced=True) as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            for name, content in {MANIFEST: head, **files}.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o600
                archive.addfile(entry, io.BytesIO(content))
    except OSError as error:
        raise unwritable(target, error, hint="name another file") from error


def read_archive(path: Path) -> tuple[Manifest, dict[str, bytes]]:
    """Return what an archive holds, every file checked. Raises UserInputError, and nothing was written."""
    try:
        with tarfile.open(path, mode="r:gz") as archive:
            found = dict(_members(path, archive))
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        why = getattr(error, "strerror", "") or str(error)
        raise UserInputError(f"{path} cannot be read: {why}", hint="name a file of longboat backup") from error
    try:
        manifest = msgspec.json.decode(found.pop(MANIFEST), type=Manifest)
    except (KeyError, msgspec.MsgspecError) as error:
        raise UserInputError(
            f"{path} is not a backup: it has no manifest", hint="name a file of longboat backup"
        ) from error
    if manifest.format > FORMAT:
        what = f"{path} has format {manifest.format}, and this Longboat reads formats up to {FORMAT}"
        raise UserInputError(what, hint=f"restore it with Longboat {manifest.longboat} or newer")
    if manifest.fleet and not FLEET_NAME.fullmatch(manifest.fleet):
        raise UserInputError(f"{path} is of a fleet named {manifest.fleet!r}", hint="name a file of longboat backup")
    if not all(map(COMMAND.fullmatch, manifest.commands)):
        raise UserInputError(f"{path} holds a command that no backup contains", hint="name a file of longboat backup")
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}
    if wrong := sorted(
        name for name in sums.keys() | manifest.files.keys() if sums.get(name) != manifest.files.get(name)
    ):
        raise UserInputError(f"{path} is damaged: {wrong[0]} differs from the manifest", hint="use another backup")
    return manifest, found


def _members(path: Path, archive: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    left = MOST_BYTES
    for entry in archive:
        name = PurePosixPath(entry.name)
        left -= entry.size
        if not entry.isfile() or name.is_absolute() or ".." in name.parts or left < 0:
            raise UserInputError(f"{path}: {entry.name} is not part of a backup", hint="name a file of longboat backup")
        file = archive.extractfile(entry)
        yield entry.name, file.read() if file else b""


def put_back(home: Path, manifest: Manifest, files: Mapping[str, bytes], *, owner: str, now: str) -> list[Restored]:
    """Write a backup's files to a home folder; a file that differs is kept as ``NAME.before-NOW``.

    owner: this machine's; usage of the machine that was backed up becomes this machine's own, unless the backup has
    some of this machine
    Raises UserInputError where a file cannot be written: those before it are; ClusterError where one of them is in use.
    """
    there, here = f"-{manifest.owner}/", f"-{owner}/"
    folders = {name.rpartition("/")[0] for name in files}  # one that the archive has takes no other's files
    targets = {(home / _renamed(name, there, here, folders)).resolve(): name for name in filter(KEPT.fullmatch, files)}
    if busy := sorted(targets.keys() & set(open_files())):
        raise ClusterError(f"a process writes to {busy[0]}", hint="end that gateway, then restore")
    return [put_file(target, files[name], now) for target, name in targets.items()]


def _renamed(name: str, there: str, here: str, taken: Container[str]) -> str:
    """Return the place of a file whose folder may be named after the machine that was backed up.

    taken: folders that keep their names, because the backup has files of both machines
    """
    renamed = name.replace(there, here, 1) if name.startswith("gateway/") else name
    return name if renamed.rpartition("/")[0] in taken else renamed


def put_file(target: Path, content: bytes, now: str) -> Restored:
    """Write one file whole; what stood there and differs becomes ``NAME.before-NOW``.

    Raises UserInputError where it cannot be written.
    """
    try:
        return _put(target, content, now)
    except OSError as error:
        raise unwritable(target, error, hint="free disk space for it, and restore again") from error


def _put(target: Path, content: bytes, now: str) -> Restored:
    is_there = target.is_file()
    if is_there and _content(target) == content:
        return Restored(target, "same")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with whole_file(target, mode=0o600) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        before = _moved_away(target, now) if is_there else None  # only when the new file is whole
    return Restored(target, "replaced" if before else "new", before)


def _moved_away(target: Path, now: str) -> Path:
    before = target.with_name(f"{target.name}.before-{now}")
    target.replace(before)
    for end in ("-wal", "-shm"):  # a database's, which the one that comes does not have
        target.with_name(target.name + end).unlink(missing_ok=True)
    return before
