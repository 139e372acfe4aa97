"""Storage of any kind through one client: lists a source's files, and reads ranges of them."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from longboat.core.errors import LongboatError, TransferError, UserInputError
from longboat.user import user_home
from longboat.weights.pieces.manifest import (
    GGUF,
    FileEntry,
    Manifest,
    make_manifest,
    parts_of,
    wanted_files,
    without_markers,
)
from longboat.weights.sources.credentials import hub_headers
from longboat.weights.sources.hub import hub_address, list_hub
from longboat.weights.sources.location import locate
from longboat.weights.sources.open_store import StorageOptions, open_store
from longboat.weights.sources.storage_errors import MissingObjectError, changed, lacking, translated

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ("SUMS", "Storage", "version_of")

SUMS: Final = "SHA256SUMS"
"""The file with hashes that a source may have, as sha256sum writes it; over plain HTTP it is also the list of files."""
HTTP: Final = ("http", "https")
MAX_SUMS_BYTES = 16 << 20
_SUM_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)")


class Storage:
    """The storage of one source. Its methods may be called from several threads."""

    def __init__(
        self, source: str, options: StorageOptions, *, env: Mapping[str, str] = os.environ, home: Path | None = None
    ) -> None:
        self.source = source
        self._options = options
        self._env = env
        self._home = home or user_home()
        self._location = locate(source)
        self._store: ObjectStore | None = None

    def manifest(self) -> Manifest:
        """List the source's files. Raises TransferError where they cannot be listed, or are not a model's."""
        name = self._location.name
        if self._location.scheme == "hf":
            entries = self._list_hub()
        elif name:
            entries = self._look_up(name)
        elif self._location.scheme in HTTP:
            entries = self._list_http()
        else:
            entries = self._with_sums(self._list(), is_all=True)
        if name:
            return make_manifest(self.source, _parts(self.source, name, entries))
        return make_manifest(self.source, wanted_files(entries))

    def read(self, entry: FileEntry, start: int, end: int) -> bytes:
        """Read the bytes from ``start`` to before ``end`` of a listed file.

        Raises ObjectChangedError where it is not the listed one, RefusedError, MissingObjectError or TransferError.
        """
        import obstore

        options: dict[str, Any] = {"range": (start, end)}
        if entry.version.startswith('"'):
            options["if_match"] = entry.version
        try:
            found = obstore.get(self._opened(), entry.path, options=options)  # type: ignore[arg-type]
            if self._is_other(entry, found.meta):
                raise changed(self.source, entry.path)
            data = bytes(found.bytes())
        except LongboatError:
            raise
        except Exception as error:
            raise translated(error, self.source, entry.path) from None
        if len(data) != end - start:
            raise TransferError(f"{entry.path} of {self.source}: {len(data)} bytes came, {end - start} were asked for")
        return data

    def read_small(self, path: str, max_bytes: int = 16 << 20) -> bytes:
        """Read a whole small file. Raises as ``read`` does, and TransferError where it is not small."""
        import obstore

        try:
            found = obstore.get(self._opened(), path)
            if found.meta["size"] > max_bytes:
                raise TransferError(f"{path} of {self.source} has {found.meta['size']} bytes, the limit is {max_bytes}")
            return bytes(found.bytes())
        except LongboatError:
            raise
        except Exception as error:
            raise translated(error, self.source, path) from None

    def _is_other(self, entry: FileEntry, meta: Mapping[str, Any]) -> bool:
        """Return whether an answer belongs to another object than the one that was listed."""
        if self._location.scheme == "hf":  # the commit in the address names the contents
            return False
        return int(meta["size"]) != entry.size or self._version(meta) != entry.version

    def _list(self) -> list[FileEntry]:
        import obstore

        try:
            found = [self._entry(meta) for page in obstore.list(self._opened()) for meta in page]
        except LongboatError:
            raise
        except Exception as error:
            raise translated(error, self.source) from None
        return without_markers(found)

    def _look_up(self, name: str) -> list[FileEntry]:
        """Ask for the parts of a named file: other files of its folder are not listed.

        Raises MissingObjectError if the file does not exist.
        """
        first, *others = parts_of(name)
        found = [self._head(first)]
        for path in others if self._location.scheme in HTTP else (*others, SUMS):
            with contextlib.suppress(MissingObjectError):
                found.append(self._head(path))
        return self._with_sums(found)

    def _list_hub(self) -> list[FileEntry]:
        """List a model of the hub, and read it by its commit from now on."""
        where = self._location
        commit, entries = list_hub(
            hub_address(self._env),
            where.container,
            where.revision,
            hub_headers(self._env, self._home),
            self._options.stall_s,
        )
        self._location, self._store = replace(where, revision=commit), None
        return list(entries)

    def _list_http(self) -> list[FileEntry]:
        """List the files that SHA256SUMS names."""
        try:
            sums = self._sums()
        except MissingObjectError:
            raise UserInputError(
                f"{self.source} has no {SUMS}, and plain HTTP cannot list files",
                hint=f"run sha256sum * > {SUMS} beside the files",
            ) from None
        return [msgspec.structs.replace(self._head(path), sha256=sha256) for path, sha256 in sums.items()]

    def _head(self, path: str) -> FileEntry:
        import obstore

        try:
            return self._entry({**obstore.head(self._opened(), path), "path": path})
        except LongboatError:
            raise
        except Exception as error:
            raise translated(error, self.source, path) from None

    def _with_sums(self, entries: list[FileEntry], *, is_all: bool = False) -> list[FileEntry]:
        """Return the entries with the hashes that the source names. is_all: they are all files of the source.

        Raises TransferError where all files are listed, and one that the hashes name is not among them.
        """
        if not any(entry.path == SUMS for entry in entries):
            return entries
        sums = self._sums()
        others = [entry for entry in entries if entry.path != SUMS]
        absent = sums.keys() - {entry.path for entry in others} if is_all else set()
        named = [FileEntry(path=path, size=0, version="") for path in absent]
        if lacks := sorted(entry.path for entry in wanted_files([*others, *named]) if entry.path in absent):
            raise lacking(self.source, lacks, f"upload what {SUMS} names, or make {SUMS} again")
        return [msgspec.structs.replace(entry, sha256=sums.get(entry.path, "")) for entry in others]

    def _sums(self) -> dict[str, str]:
        """Read the hashes that the source names. A list that was made by ``sha256sum *`` may name itself."""
        text = self.read_small(SUMS, MAX_SUMS_BYTES).decode(errors="replace")
        found = (_SUM_LINE.fullmatch(line) for line in text.splitlines())
        return {match[2]: match[1].lower() for match in found if match and match[2] != SUMS}

    def _opened(self) -> ObjectStore:
        if self._store is None:
            self._store = open_store(self._location, self.source, self._options, self._env, self._home)
        return self._store

    def _entry(self, meta: Mapping[str, Any]) -> FileEntry:
        return FileEntry(path=str(meta["path"]), size=int(meta["size"]), version=self._version(meta))

    def _version(self, meta: Mapping[str, Any]) -> str:
        if self._location.scheme == "file":  # the client's tag holds the inode, which differs between nodes
            return f"{meta['size']}-{meta['last_modified'].isoformat()}"
        return version_of(meta)


def _parts(source: str, name: str, entries: list[FileEntry]) -> list[FileEntry]:
    """Return the parts of a model that is named by one file. Raises TransferError where some are missing."""
    wanted = parts_of(name)
    found = [entry for entry in entries if entry.path in wanted]
    if not found:
        others = sorted(entry.path for entry in entries if entry.path.endswith(GGUF))
        hint = f"it has {', '.join(get_close_matches(name, others, 3, 0) or ['no GGUF file'])}"
        raise MissingObjectError(f"there is no {name} in {source}", hint=hint)
    if missing := sorted(set(wanted) - {entry.path for entry in found}):
        raise lacking(source, missing, "upload the missing parts")
    return found


def version_of(meta: Mapping[str, Any]) -> str:
    """Return an object's ETag, or its time of change. Azure lists ETags without the quotes that its answers have."""
    tag = str(meta.get("e_tag") or "")
    if not tag:
        return str(meta["last_modified"].isoformat())
    return tag if tag.startswith(('"', "W/")) else f'"{tag}"'
