"""The Hugging Face hub: which files a revision of a model has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import httpx
import msgspec

from longboat.core.errors import TransferError
from longboat.weights.pieces.manifest import FileEntry
from longboat.weights.sources.storage_errors import MissingObjectError, RefusedError

__all__ = ("HUB", "hub_address", "list_hub")

HUB: Final = "https://huggingface.co"
MAX_PAGES = 100
_NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')
_COMMIT = re.compile(r"[0-9a-f]{40}")
_Answer = TypeVar("_Answer")


class _Revision(msgspec.Struct):
    """What the hub says of a revision."""

    sha: str = ""  # the commit


class _Large(msgspec.Struct):
    """What the hub says of a file that it keeps outside git."""

    oid: str = ""  # SHA-256


class _Item(msgspec.Struct):
    """An entry of a listing: a file, a folder, or something else that has a path."""

    type: str
    path: str
    size: int | None = None  # bytes; of a file, as the rest
    oid: str | None = None  # in git
    lfs: _Large | None = None


def hub_address(env: Mapping[str, str]) -> str:
    """Return the address of the hub: HF_ENDPOINT, or the public one."""
    return (env.get("HF_ENDPOINT") or HUB).rstrip("/")


def list_hub(
    address: str, repository: str, revision: str, headers: Mapping[str, str], stall_s: float
) -> tuple[str, tuple[FileEntry, ...]]:
    """Return the commit of a revision, and its files. Raises TransferError where the hub does not give them."""
    where = f"hf:{repository}@{revision}"
    with httpx.Client(timeout=stall_s, follow_redirects=True) as client:
        hub = _Hub(client, address, headers, where)
        named, _ = hub.get(f"{address}/api/models/{repository}/revision/{revision}", _Revision)
        if not _COMMIT.fullmatch(commit := named.sha):
            raise TransferError(f"the hub names no commit for {where}", hint="check HF_ENDPOINT")
        items: list[_Item] = []
        url = f"{address}/api/models/{repository}/tree/{commit}?recursive=true"
        for _ in range(MAX_PAGES):
            page, following = hub.get(url, list[_Item])
            items += page
            if following is None:
                return commit, tuple(_entry(item, where) for item in items if item.type == "file")
            url = following
    raise TransferError(f"the hub's listing of {where} has more than {MAX_PAGES} pages", hint="check HF_ENDPOINT")


@dataclass(frozen=True, slots=True)
class _Hub:
    """Requests for one model."""

    client: httpx.Client
    address: str
    headers: Mapping[str, str]  # with the token, which no other host gets
    where: str  # the model, for messages

    def get(self, url: str, kind: type[_Answer]) -> tuple[_Answer, str | None]:
        """Return the hub's answer, and the address of the next page where there is one."""
        where = self.where
        try:
            answer = self.client.get(url, headers=self.headers if _origin(url) == _origin(self.address) else None)
            following = _NEXT.search(answer.headers.get("link", ""))
            after = str(httpx.URL(url).join(following[1])) if following else None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TransferError(
                f"the hub cannot be reached for {where}: {type(error).__name__}",
                hint="check the network, HF_ENDPOINT and proxies",
            ) from None
        if answer.status_code in (401, 403):
            raise RefusedError(
                f"the hub refuses {where}: {answer.status_code}", hint="accept its terms, and set HF_TOKEN"
            )
        if answer.status_code == 404:
            raise MissingObjectError(f"the hub has no {where}", hint="check the name and the revision; set HF_TOKEN")
        if answer.status_code != 200:
            raise TransferError(f"the hub answers {answer.status_code} for {where}", hint="try again later")
        try:
            return msgspec.json.decode(answer.content, type=kind), after
        except ValueError:  # of msgspec: no JSON, or JSON of another shape
            raise _no_listing(where) from None


def _origin(url: str) -> tuple[str, str, int | None]:
    parsed = httpx.URL(url)
    return parsed.scheme, parsed.host, parsed.port


def _no_listing(where: str) -> TransferError:
    hint = "check HF_ENDPOINT and proxies: a page for signing in may be in the hub's place"
    return TransferError(f"the hub's answer for {where} is not a listing", hint=hint)


def _entry(item: _Item, where: str) -> FileEntry:
    if item.size is None or item.oid is None:
        raise _no_listing(where)
    return FileEntry(path=item.path, size=item.size, version=item.oid, sha256=item.lfs.oid if item.lfs else "")
