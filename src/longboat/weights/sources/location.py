"""A source in its parts: which storage, which bucket, which prefix."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ("Location", "locate")

HUB = "hf:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """Where a model's files are."""

    scheme: str  # s3, gs, az, http, https, file or hf
    container: str  # bucket, container, HOST[:PORT], or organisation/name; empty for files
    prefix: str  # folder inside, without slashes at its ends; for one file, the folder of it
    name: str = ""  # of the one file that is wanted; empty: the whole folder
    revision: str = ""  # of a hub's model: branch, tag or commit


def locate(source: str) -> Location:
    """Return the parts of a source that the fleet file's checks let pass."""
    if source.startswith(HUB):
        return _locate_hub(source.removeprefix(HUB))
    scheme, _, rest = source.partition("://")
    container, _, path = rest.partition("/")
    prefix, name = path.strip("/"), ""
    if prefix.lower().endswith(".gguf"):
        prefix, _, name = prefix.rpartition("/")
    return Location(scheme=scheme, container=container, prefix=prefix, name=name)


def _locate_hub(rest: str) -> Location:
    repository, _, name = rest.partition(":")
    repository, _, revision = repository.partition("@")
    return Location(scheme="hf", container=repository, prefix="", name=name, revision=revision or "main")
