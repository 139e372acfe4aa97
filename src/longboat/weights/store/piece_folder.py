"""The folder of one model in the store: its manifest, its files, and a record of the pieces that are there.

KEY/manifest.json   what was listed
KEY/pieces          32 bytes for each piece: its SHA-256, or zeros while it is missing
KEY/boot            the boot of the machine during which pieces were written
KEY/files/…         the files that an engine reads
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from longboat.core.errors import ClusterError, TransferError
from longboat.disk_sync import sync, write_whole
from longboat.processes import boot_id
from longboat.weights.pieces.manifest import FileEntry, Manifest, Piece, pieces_of, read_manifest
from longboat.weights.store.piece_record import PieceRecord, write_at

__all__ = ("ABSENT", "BOOT", "FILES", "PieceFolder", "WrongHashError", "disk_error")

FILES: Final = "files"
BOOT: Final = "boot"
HASH_THREADS = min(8, os.cpu_count() or 1)
FULL = (errno.ENOSPC, errno.EDQUOT)
ABSENT: Final = (FileNotFoundError, NotADirectoryError, PermissionError)
"""What the system says of a file that is not there for this user. Any other error says nothing of the file."""


class WrongHashError(TransferError):
    """Files that came whole, and have other hashes than the source names. Their pieces are forgotten."""


class PieceFolder:
    """The pieces of one model on this node: their files, and ``record``, which says what the files hold.

    Several threads may write pieces at the same time.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.pieces = pieces_of(manifest)
        self.record = PieceRecord(folder / "pieces", len(self.pieces))

    @classmethod
    def opened(cls, folder: Path) -> PieceFolder:
        """Open what is there. Raises FileNotFoundError where nothing is, UserInputError for a damaged manifest."""
        path = folder / "manifest.json"
        return cls(folder, read_manifest(path.read_bytes(), str(path)))

    @classmethod
    def begun(cls, folder: Path, manifest: Manifest) -> PieceFolder:
        """Open the folder of a fetch, or make it. After a crash of the machine, the pieces are read and checked."""
        path, text = folder / "manifest.json", msgspec.json.encode(manifest)
        try:
            (folder / FILES).mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_bytes() != text:  # a power cut leaves an empty one
                write_whole(path, text)
            found = cls(folder, manifest)
            _make_writable(found)
            boot = boot_id() or "unknown"
            if _text_of(folder / BOOT) != boot:
                found.recheck()
                write_whole(folder / BOOT, boot.encode())
        except OSError as error:
            raise disk_error(error, folder) from None
        return found

    @property
    def have_bytes(self) -> int:
        """Bytes of the pieces that are there."""
        return sum(self.pieces[index].length for index in self.record.present())

    def path(self, name: str) -> Path:
        """Return where a file of the manifest is."""
        return self.folder / FILES / name

    def put(self, piece: Piece, data: bytes, sha256: str) -> None:
        """Write a piece, and then note that it is there. Raises ClusterError where the disk is full or fails."""
        path = self.path(piece.path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                write_at(descriptor, data, piece.offset)
            finally:
                os.close(descriptor)
            self.record.note(piece.index, bytes.fromhex(sha256))
        except OSError as error:
            raise disk_error(error, self.folder) from None

    def recheck(self) -> tuple[str, ...]:
        """Read every piece that should be there, forget the wrong ones, and return the names of their files."""
        wrong = self.wrong_pieces()
        self.record.forget(piece.index for piece in wrong)
        return tuple(dict.fromkeys(piece.path for piece in wrong))

    def wrong_pieces(self) -> tuple[Piece, ...]:
        """Read every piece that should be there and return those whose bytes have another hash."""
        noted = [self.pieces[index] for index in self.record.present()]
        with ThreadPoolExecutor(HASH_THREADS) as pool:
            checked = zip(noted, pool.map(self._is_right, noted), strict=True)
            return tuple(piece for piece, is_right in checked if not is_right)

    def looks_whole(self) -> bool:
        """Return whether every file has its size: a quick look, which reads no weights. Raises OSError."""
        return all(map(self._has_size, self.manifest.files))

    def _has_size(self, file: FileEntry) -> bool:
        try:
            return self.path(file.path).stat().st_size == file.size
        except ABSENT:
            return False

    def finish(self) -> None:
        """Check the files against the hashes that the source names, and write everything to the disk.

        Raises TransferError where a file is missing, WrongHashError where it has another hash: its pieces are
        forgotten. Raises ClusterError where the disk fails.
        """
        try:
            with ThreadPoolExecutor(HASH_THREADS) as pool:
                self._check_files(pool)
                list(pool.map(_settle, (self.path(file.path) for file in self.manifest.files)))
            self._sync_records()
        except OSError as error:
            raise disk_error(error, self.folder) from None

    def _check_files(self, pool: ThreadPoolExecutor) -> None:
        for file in self.manifest.files:
            if file.size == 0:
                self.path(file.path).parent.mkdir(parents=True, exist_ok=True)
                self.path(file.path).touch()
        lost = [file.path for file in self.manifest.files if not self._has_size(file)]
        if lost:
            self._forget_files(lost)
            raise TransferError(
                f"{', '.join(lost)} of {self.manifest.source} is no longer in {self.folder}",
                hint="run it again: it is fetched again",
            )
        named = [file for file in self.manifest.files if file.sha256]
        found = pool.map(lambda file: _sha256_of(self.path(file.path)), named)
        wrong = [file.path for file, sha256 in zip(named, found, strict=True) if sha256 != file.sha256]
        if wrong:
            self._forget_files(wrong)
            raise WrongHashError(
                f"{', '.join(wrong)} of {self.manifest.source} has another hash than the source names",
                hint="the file or its hash in the source is wrong; upload it again",
            )

    def _forget_files(self, paths: Sequence[str]) -> None:
        self.record.forget(piece.index for piece in self.pieces if piece.path in paths)

    def _sync_records(self) -> None:
        """Write to the disk what says which files and pieces are there, and the folders that name all of them."""
        records = [path for name in ("manifest.json", "pieces") if (path := self.folder / name).exists()]
        paths = (*records, *(self.path(file.path) for file in self.manifest.files))
        folders = {folder for path in paths for folder in path.parents if folder.is_relative_to(self.folder)}
        for path in (*records, *folders):
            sync(path)

    def _is_right(self, piece: Piece) -> bool:
        try:
            with self.path(piece.path).open("rb") as file:
                file.seek(piece.offset)
                return hashlib.sha256(file.read(piece.length)).digest() == self.record[piece.index]
        except OSError:
            return False


def _make_writable(folder: PieceFolder) -> None:
    """Let files be written that were published once, and cut what is behind their ends. Raises OSError."""
    for file in folder.manifest.files:
        with contextlib.suppress(FileNotFoundError):
            path = folder.path(file.path)
            if not (stat := path.stat()).st_mode & 0o200:
                path.chmod(0o644)
            if stat.st_size > file.size:
                os.truncate(path, file.size)


def _text_of(path: Path) -> str:
    """Return a file's text; nothing where it does not exist."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def _settle(path: Path) -> None:
    """Write a file's bytes to the disk, and make it read-only: replicas of all models share it."""
    sync(path)
    path.chmod(0o444)


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def disk_error(error: OSError, folder: Path) -> ClusterError:
    """Return the error for a disk that is full, or that neither reads nor writes a model's folder."""
    if error.errno in FULL:
        return ClusterError(
            f"the disk of {folder} is full; what was fetched stays, and is not served",
            hint="free the disk or lower weights.disk, and run it again: the fetch continues where it was",
        )
    return ClusterError(
        f"the disk of {folder} fails: {error.strerror}",
        hint="check the disk, LONGBOAT_HOME and the limit of open files",
    )
