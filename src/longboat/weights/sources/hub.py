"""The Hugging Face hub: which files a revision of a model has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import httpx

from longboat.core.errors import TransferError
from longboat.weights.pieces.manifest import FileEntry
from longboat.weights.sources.storage_errors import MissingObjectError, RefusedError

__all__ = ("HUB", "hub_address", "list_hub")

HUB: Final = "https://huggingface.co"
TIMEOUT_S = 30.0
MAX_PAGES = 100
_NEXT = re.compile(r'<([^>]+)>;\s*rel="next"')
_COMMIT = re.compile(r"[0-9a-f]{40}")


def hub_address(env: Mapping[str, str]) -> str:
    """Return the address of the hub: HF_ENDPOINT, or the public one."""
    return (env.get("HF_ENDPOINT") or HUB).rstrip("/")


def list_hub(
    address: str, repository: str, revision: str, headers: Mapping[str, str]
) -> tuple[str, tuple[FileEntry, ...]]:
    """Return the commit of a revision, and its files. Raises TransferError where the hub does not give them."""
    where = f"hf:{repository}@{revision}"
    with httpx.Client(timeout=TIMEOUT_S, headers=dict(headers), follow_redirects=True) as client:
        commit = _get(client, f"{address}/api/models/{repository}/revision/{revision}", where).json().get("sha", "")
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise TransferError(f"the hub names no commit for {where}", hint="check HF_ENDPOINT")
        entries: list[FileEntry] = []
        url: str | None = f"{address}/api/models/{repository}/tree/{commit}?recursive=true"
        for _ in range(MAX_PAGES):
            if url is None:
                break
            answer = _get(client, url, where)
            entries += [_entry(item) for item in answer.json() if item.get("type") == "file"]
            found = _NEXT.search(answer.headers.get("link", ""))
            url = found[1] if found else None
    return commit, tuple(entries)


def _get(client: httpx.Client, url: str, where: str) -> httpx.Response:
    try:
        answer = client.get(url)
    except httpx.HTTPError as error:
        raise TransferError(
            f"the hub cannot be reached for {where}: {type(error).__name__}",
            hint="check the network, HF_ENDPOINT and proxies",
        ) from None
    if answer.status_code in (401, 403):
        raise RefusedError(f"the hub refuses {where}: {answer.status_code}", hint="accept its terms, and set HF_TOKEN")
    if answer.status_code == 404:
        raise MissingObjectError(f"the hub has no {where}", hint="check the name and the revision; set HF_TOKEN")
    if answer.status_code != 200:
        raise TransferError(f"the hub answers {answer.status_code} for {where}", hint="try again later")
    return answer


def _entry(item: Mapping[str, Any]) -> FileEntry:
    large = item.get("lfs") or {}
    return FileEntry(
        path=str(item["path"]),
        size=int(item["size"]),
        version=str(item["oid"]),
        sha256=str(large.get("oid") or ""),
    )
