"""The manifest of a model's files: size, version and hash of each, and the pieces that they are fetched in."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import msgspec

from longboat.core.errors import TransferError, UserInputError

__all__ = (
    "FileEntry",
    "Manifest",
    "Piece",
    "make_manifest",
    "parts_of",
    "pieces_of",
    "read_manifest",
    "wanted_files",
    "without_markers",
)

MIB: Final = 1 << 20
LEAST_PIECE_BYTES: Final = 4 * MIB
MOST_PIECE_BYTES: Final = 16 * MIB
MOST_SMALL_PIECES: Final = 4096
"""A model of more pieces gets larger ones."""
MAX_FILES: Final = 10_000
MAX_NAME_BYTES: Final = 1000

SAFETENSORS: Final = ".safetensors"
GGUF: Final = ".gguf"
OTHER_WEIGHTS: Final = (".h5", ".msgpack", ".onnx", ".ot", GGUF)
"""Copies of the same weights in formats that engines do not read where there are safetensors."""
OLDER_WEIGHTS: Final = (".bin", ".pt", ".pth")
"""Copies beside safetensors; in a folder, such a file may be a layer of its own (``2_Dense/pytorch_model.bin``)."""
COPY_FOLDERS: Final = ("original", "metal", "onnx", "openvino")
"""Folders in which publishers keep the same weights for other engines."""
NO_MATTER: Final = (".md", ".png", ".jpg", ".jpeg", ".gif", ".pdf", ".mp4")
_UNSAFE = re.compile(r"[\0-\x1f\x7f\\]")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_SLUG_LENGTH = 60
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a model in its source."""

    path: str  # below the source, with slashes
    size: int  # bytes
    version: str  # ETag or time of change: two equal ones mean equal contents
    sha256: str = ""  # that the source names for the file; empty where it names none


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of one file that is fetched, checked and shared as one."""

    index: int  # among all pieces of the manifest
    path: str  # of the file
    offset: int  # of the first byte in the file
    length: int  # bytes


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a model as they were listed, in the order of their paths."""

    source: str  # as the fleet file names it; it holds no secrets
    files: tuple[FileEntry, ...]
    piece_bytes: int

    @property
    def num_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def key(self) -> str:
        """Name of these contents: readable, and different where any file is."""
        digest = hashlib.sha256(msgspec.json.encode(self)).hexdigest()
        slug = _NOT_IN_NAMES.sub("-", self.source).strip("-._")[-_SLUG_LENGTH:].strip("-._")
        return f"{slug or 'model'}-{digest[:16]}"


def make_manifest(source: str, files: Iterable[FileEntry]) -> Manifest:
    """Return the manifest of listed files. Raises TransferError where a listing cannot be a model's."""
    entries = tuple(sorted(files, key=lambda file: file.path))
    if not entries:
        raise TransferError(f"{source} holds no files", hint="check the bucket and the prefix")
    if len(entries) > MAX_FILES:
        raise TransferError(
            f"{source} holds {len(entries)} files, the limit is {MAX_FILES}", hint="name the folder of one model"
        )
    for entry in entries:
        _check_path(source, entry.path)
    if twice := next((one.path for one, other in pairwise(entries) if one.path == other.path), ""):
        raise TransferError(f"the listing of {source} names {twice!r} twice", hint="check the storage's listing")
    _check_folders(source, entries)
    return Manifest(source=source, files=entries, piece_bytes=_piece_bytes(sum(file.size for file in entries)))


def _check_path(source: str, path: str) -> None:
    parts = path.split("/")
    if _UNSAFE.search(path) or any(part in ("", ".", "..") for part in parts) or len(path.encode()) > MAX_NAME_BYTES:
        raise TransferError(f"{source} holds {path!r}, which cannot be a file's name here", hint="rename that object")


def _check_folders(source: str, entries: tuple[FileEntry, ...]) -> None:
    """Refuse a name that stands for a file and for a folder: storage may hold both."""
    if found := _folders_of(entries) & {entry.path for entry in entries}:
        raise TransferError(f"{source} holds {min(found)!r} and files below it", hint="remove one of the two")


def _folders_of(entries: Iterable[FileEntry]) -> set[str]:
    """Return the folders of listed files; the source itself is the empty name."""
    found = {""}
    for entry in entries:
        folder = entry.path.rpartition("/")[0]
        while folder not in found:
            found.add(folder)
            folder = folder.rpartition("/")[0]
    return found


def _piece_bytes(num_bytes: int) -> int:
    size = LEAST_PIECE_BYTES
    while size < MOST_PIECE_BYTES and num_bytes > size * MOST_SMALL_PIECES:
        size *= 2
    return size


def pieces_of(manifest: Manifest) -> tuple[Piece, ...]:
    """Return the pieces of all files. An empty file has none."""
    return tuple(Piece(index, *span) for index, span in enumerate(_spans(manifest)))


def _spans(manifest: Manifest) -> Iterator[tuple[str, int, int]]:
    for file in manifest.files:
        for offset in range(0, file.size, manifest.piece_bytes):
            yield file.path, offset, min(manifest.piece_bytes, file.size - offset)


def read_manifest(text: bytes, origin: str) -> Manifest:
    """Read a manifest that was written as JSON. Raises UserInputError where it is not one."""
    try:
        return msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UserInputError(
            f"{origin} is not a manifest of weights: {error}", hint="remove its folder, and the weights are fetched"
        ) from None


def without_markers(entries: Sequence[FileEntry]) -> list[FileEntry]:
    """Return the files of a listing without the empty objects by which consoles of storage mark folders."""
    folders = _folders_of(entries)
    return [entry for entry in entries if entry.size or entry.path not in folders]


def wanted_files(files: Iterable[FileEntry]) -> tuple[FileEntry, ...]:
    """Return the files that an engine reads: without hidden ones, pictures, and copies in older formats."""
    shown = [file for file in files if not _is_hidden(file.path) and not file.path.lower().endswith(NO_MATTER)]
    if any(file.path.endswith(SAFETENSORS) and "/" not in file.path for file in shown):
        shown = [file for file in shown if not _is_copy(file.path)]
    return tuple(shown)


def parts_of(name: str) -> tuple[str, ...]:
    """Return the files of a model that is named by one file, the first part first: engines are given that one."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]):
        return (name,)
    count = int(match["count"])
    return tuple(f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1))


def _is_copy(path: str) -> bool:
    """Return whether the file is another copy of weights: in an older format, or in a folder for other engines."""
    folder, _, rest = path.partition("/")
    if rest and folder in COPY_FOLDERS:
        return True
    return path.lower().endswith(OTHER_WEIGHTS if rest else (*OTHER_WEIGHTS, *OLDER_WEIGHTS))


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))
