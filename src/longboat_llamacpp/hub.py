"""Fetches a GGUF file from a hub, once for each machine; HF_ENDPOINT, HF_TOKEN and HF_HOME are read as usual."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import http.client
import os
import re
import secrets
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO

__all__ = ("fetched",)

_PART = re.compile(r"-00001-of-(\d{5})\.gguf$")
_PIECE_BYTES = 1 << 22
_REPORT_BYTES = 1 << 30
_TIMEOUT_S = 60.0
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""What a file system says that has no locks, as some network file systems do."""


def fetched(repository: str, name: str) -> str:
    """Return the path of a file of ``repository``, downloaded where it is missing, with all of its parts.

    An interrupted download continues where it stopped while the hub has the same file, by its ETag. Processes that
    need the same file download it once; on a file system without locks, each downloads the whole file.

    Exits where the hub does not have the file.
    """
    folder = _hub_home() / "longboat-gguf" / repository
    folder.mkdir(parents=True, exist_ok=True)
    for part in _parts(name):
        target = folder / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            with _partial(target) as partial:
                if not target.exists():
                    _fetch(repository, part, partial)
                    _settle(partial)
                    partial.rename(target)
                    _tag_file(partial).unlink(missing_ok=True)
    return str(folder / name)


def _settle(path: Path) -> None:
    """Write a file to the disk: after a power cut, a name must not stand for a part of it."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _hub_home() -> Path:
    """Return the hub's own folder on this machine."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(os.environ.get("HF_HOME") or Path(caches) / "huggingface")


@contextlib.contextmanager
def _partial(target: Path) -> Iterator[Path]:
    """Hold the lock of a file's download, after the process that has it; yields where the download is written.

    The kernel releases a dead process's lock. Without locks, the download is this process's own, and is not continued.
    """
    with target.with_name(f".{target.name}.lock").open("a") as lock:
        if _is_locked(lock):
            yield target.with_name(f"{target.name}.partial")
            return
    own = target.with_name(f"{target.name}.{secrets.token_hex(4)}.partial")
    try:
        yield own
    finally:
        for path in (own, _tag_file(own)):
            path.unlink(missing_ok=True)


def _tag_file(partial: Path) -> Path:
    """Return the file that holds the ETag of the file to which the bytes of ``partial`` belong."""
    return partial.with_name(f"{partial.name}.etag")


def _is_locked(file: IO[str]) -> bool:
    """Lock ``file`` as soon as that is possible; returns False where the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


def _parts(name: str) -> list[str]:
    found = _PART.search(name)
    if found is None:
        return [name]
    return [_PART.sub(f"-{number:05d}-of-{found[1]}.gguf", name) for number in range(1, int(found[1]) + 1)]


def _fetch(repository: str, name: str, partial: Path) -> None:
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    url = f"{endpoint}/{repository}/resolve/main/{name}"
    try:
        try:
            _continue(url, partial, name)
        except urllib.error.HTTPError as error:
            if error.code != 416 or not partial.exists():
                raise
            if error.headers.get("content-range") != f"bytes */{partial.stat().st_size}":  # not what the hub has
                partial.unlink()
                _continue(url, partial, name)
    except urllib.error.HTTPError as error:
        raise SystemExit(f"longboat: {repository} has no {name} for us: HTTP {error.code} from {endpoint}") from error
    except OSError as error:
        raise SystemExit(f"longboat: {name} did not arrive from {endpoint}: {error}") from error


def _continue(url: str, partial: Path, name: str) -> None:
    """Download what ``partial`` lacks, or the whole file where it may be another one since.

    Raises OSError, HTTPError with 416 where the hub has nothing after it.
    """
    tag_file = _tag_file(partial)
    tag = tag_file.read_text() if tag_file.exists() else ""
    have = partial.stat().st_size if tag and partial.exists() else 0
    headers = {"user-agent": "longboat"} | ({"range": f"bytes={have}-", "if-range": tag} if have else {})
    request = urllib.request.Request(url, headers=headers)  # noqa: S310 # an endpoint of the operator's choice
    if token := os.environ.get("HF_TOKEN"):
        request.add_unredirected_header("authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
        is_another = answer.status == 206 and answer.headers.get("etag") != tag  # by a server that knows no If-Range
        if is_another:
            partial.unlink()
        else:
            _write(answer, partial, name)
    if is_another:
        _continue(url, partial, name)


def _write(answer: http.client.HTTPResponse, partial: Path, name: str) -> None:
    """Append the answer, or write it in place of what is there if it is the whole file."""
    with partial.open("ab" if answer.status == 206 else "wb") as file:
        if answer.status != 206:
            _tag_file(partial).write_text(_strong_tag(answer.headers.get("etag", "")))
        _copy(answer, file, name)


def _strong_tag(tag: str) -> str:
    """Return an ETag by which a download may continue; empty for a weak one, which does not promise the same bytes."""
    return "" if tag.startswith("W/") else tag


def _copy(answer: http.client.HTTPResponse, file: IO[bytes], name: str) -> None:
    """Copy the rest of the file. Raises OSError where the hub sends less than it announced."""
    length = answer.headers.get("content-length")
    done = reported = 0
    while piece := answer.read(_PIECE_BYTES):
        file.write(piece)
        done += len(piece)
        if done - reported >= _REPORT_BYTES:
            reported = done
            print(f"longboat: {name}: {done / 1e9:.1f} GB fetched", flush=True)
    if length is not None and done < int(length):
        raise OSError(f"it ended after {done} of {length} bytes")
