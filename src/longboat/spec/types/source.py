"""Where a model comes from (``builtin:tiny``, a folder, ``hf:org/name``, ``s3://…``) and the name that follows."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = (
    "UNUSABLE",
    "SourceMistake",
    "check_source",
    "is_fetched",
    "is_gguf",
    "is_local_path",
    "name_from_source",
    "same_source",
)

UNUSABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that no path and no argument of a program can hold: NUL, and what stands for bytes that are not UTF-8."""

BUILTIN = re.compile(r"builtin:[a-z0-9][a-z0-9.-]{0,62}")
HUB_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
REVISION = r"(?:@[A-Za-z0-9][A-Za-z0-9._-]{0,99})?"
HUB = re.compile(rf"hf:{HUB_NAME}/{HUB_NAME}{REVISION}")
GGUF = ".gguf"
HUB_FILE = re.compile(rf"hf:{HUB_NAME}/{HUB_NAME}{REVISION}:(?:{HUB_NAME}/){{0,4}}{HUB_NAME}\.gguf")
BARE_HUB = re.compile(rf"{HUB_NAME}/{HUB_NAME}")
SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
LATER_SCHEMES = ("oci://",)
BUCKETS = ("s3://", "gs://", "az://")
URLS = ("http://", "https://")
FILES = "file://"
STORAGE = (*BUCKETS, *URLS, FILES)
"""How sources begin that nodes fetch into their store of weights."""
BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
UNUSABLE_IN_STORAGE = re.compile(r"[\0-\x20\x7f\\\ud800-\udfff]")
BUILT_IN_NAMES = ("tiny", "random-")
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
MAX_NAME = 63


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMistake:
    """Why a source cannot be used. later: it is understood, but this version does not have it."""

    what: str
    hint: str
    later: bool = False


def is_local_path(source: str) -> bool:
    """Return whether the source is a folder or a file on the nodes."""
    return source.startswith("/")


def is_gguf(source: str) -> bool:
    """Return whether the source is a GGUF file, on the nodes or of a hub."""
    return source.lower().endswith(GGUF)


def check_source(source: str, folder: str) -> SourceMistake | None:
    """Return what is wrong with a source. folder: absolute, where a relative path starts, for the hint."""
    if BUILTIN.fullmatch(source) or HUB.fullmatch(source) or HUB_FILE.fullmatch(source):
        return None
    if is_local_path(source):
        return _check_path(source)
    if source.startswith(STORAGE):
        return _check_storage(source)
    if source.startswith(LATER_SCHEMES):
        scheme = source.partition("://")[0]
        return SourceMistake(
            what=f"not yet: models from {scheme}://",
            hint="copy it to a folder on the nodes, and write /that/folder",
            later=True,
        )
    return _check_other(source, folder)


def is_fetched(source: str) -> bool:
    """Return whether nodes fetch the source into their store of weights before an engine reads it."""
    return source.startswith(STORAGE) or (source.startswith("hf:") and "@" in source)


def same_source(source: str) -> str:
    """Return the source as all spellings of it are stored: in a store, slashes at the end name the same folder."""
    return source.rstrip("/") if source.startswith(STORAGE) else source


def _check_storage(source: str) -> SourceMistake | None:
    scheme, _, rest = source.partition("://")
    place, _, path = rest.partition("/")
    if UNUSABLE_IN_STORAGE.search(source) or ".." in path.split("/"):
        return SourceMistake(what=f"a {scheme}:// source has a character that it cannot have", hint="rename the folder")
    if "@" in place or "?" in rest or "#" in rest:
        return SourceMistake(
            what=f"a {scheme}:// source holds a key, a query or a fragment",
            hint="write only the address: keys come from the environment, ~/.aws or ~/.netrc of the nodes",
        )
    if scheme == "file":
        ok = not place and path.strip("/")
        return None if ok else SourceMistake(what=f"{source!r} names no folder", hint="write file:///the/folder")
    if scheme in ("http", "https"):
        ok = place and path.strip("/")
        hint = f"write {scheme}://HOST/FOLDER, with SHA256SUMS in that folder"
        return None if ok else SourceMistake(what=f"{source!r} names no folder", hint=hint)
    if not BUCKET.fullmatch(place):
        return SourceMistake(what=f"{place!r} is not a bucket's name", hint=f"write {scheme}://BUCKET/FOLDER")
    return None


def _check_path(source: str) -> SourceMistake | None:
    if UNUSABLE.search(source) or "\n" in source:
        return SourceMistake(what=f"{source!r} has a character that a path cannot have", hint="write one absolute path")
    if posixpath.normpath(source).strip("/") == "":
        return SourceMistake(what="/ is not a model's folder", hint="write the folder that holds config.json")
    return None


def _check_other(source: str, folder: str) -> SourceMistake:
    scheme, colon, _ = source.partition(":")
    if scheme == "builtin" and colon:
        near = source.lower() if BUILTIN.fullmatch(source.lower()) else "builtin:tiny"
        return SourceMistake(what=f"{source!r} names no built-in model", hint=f"write {near}")
    if scheme == "hf" and colon:
        return SourceMistake(
            what=f"{source!r} is not hf:ORGANISATION/NAME",
            hint="write it like hf:Qwen/Qwen3-0.6B; one file of it like hf:Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf",
        )
    if colon and SCHEME.fullmatch(scheme):
        where = "write hf:ORGANISATION/NAME (hf:openai/gpt-oss-20b), builtin:tiny or a folder's absolute path"
        near = f"{scheme.lower()}:{source.partition(':')[2]}"
        hint = (
            f"write {near}"
            if BUILTIN.fullmatch(near) or HUB.fullmatch(near)
            else f"{where}: Longboat runs models itself"
        )
        return SourceMistake(what=f"{scheme}: is not a place that models come from", hint=hint)
    if source.startswith("~"):
        return SourceMistake(
            what=f"{source!r} means another folder on each node", hint="write the absolute path, as the nodes see it"
        )
    if not source.strip():
        return SourceMistake(what="the source is empty", hint="write builtin:tiny, /a/folder or hf:org/name")
    absolute = posixpath.normpath(posixpath.join(folder, source))
    hints = [f"write {absolute} (the nodes see absolute paths only)", *_other_places(source)]
    return SourceMistake(what=f"{source!r} is a relative path", hint=", or ".join(hints))


def _other_places(source: str) -> Iterator[str]:
    """Yield what a relative path may mean beside a folder."""
    if "/" in source:
        if BARE_HUB.fullmatch(source):
            yield f"hf:{source} for the Hugging Face hub"
        return
    if BUILTIN.fullmatch(f"builtin:{source}") and source.startswith(BUILT_IN_NAMES):
        yield f"builtin:{source} for a built-in model"
    else:
        yield f"hf:{_hub_name(source) or 'ORGANISATION/NAME'} for the Hugging Face hub"


def _hub_name(model: str) -> str:
    """Return the repository of a model that the catalog has under this name, as `fit` and `plan` print it."""
    from longboat.catalog.library import built_in_library
    from longboat.catalog.names import normal_name

    found = (entry.hub for entry in built_in_library().models.values() if normal_name(entry.name) == normal_name(model))
    return next(found, "")


def name_from_source(source: str) -> str:
    """Return the name for clients when the file gives none; ``""`` where the source gives nothing usable."""
    last = source.rstrip("/").rpartition("/")[2].rpartition(":")[2]
    last = last.partition("@")[0] if source.startswith("hf:") else last  # the name is the same for every revision
    last = last[: -len(GGUF)] if is_gguf(last) else last
    return NOT_IN_NAMES.sub("-", last)[:MAX_NAME].strip("._-")
