"""Fetches one file of a package index, as pip is set up on this machine. Its digest decides whether it is right."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urljoin

import httpx

from longboat.core.errors import TransferError
from longboat.engines.environments.package_sources import PackageSources, package_sources

__all__ = ("SourcePackage", "fetched", "link_to")

_INDEX = "https://pypi.org/simple"
_TIMEOUT_S = 120.0
_LINK = re.compile(r"""href=["']([^"']+)["']""")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePackage:
    """A file of an index."""

    project: str
    file: str
    sha256: str


def fetched(package: SourcePackage, folder: Path) -> Path:
    """Return the path of the package's file in ``folder``.

    Raises TransferError where no source of this machine has the file with that digest.
    """
    sources, target, said = package_sources(), folder / package.file, []
    for place in sources.find_links:
        local = Path(place).expanduser() / package.file
        if local.is_file():
            shutil.copyfile(local, target)
            return _checked(package, target)
    with _client(sources) as client:
        for index in _indexes(sources):
            try:
                if _download(client, index, package, target):
                    return _checked(package, target)
                said.append(f"{_without_secrets(index)} does not have it")
            except (httpx.HTTPError, OSError) as error:
                said.append(f"{_without_secrets(index)}: {type(error).__name__}: {error}")
    raise TransferError(
        f"{package.file} was found in no package index of this machine: {'; '.join(said)}",
        hint="check this machine's connection to the index, or put the file into a folder of pip's find-links",
    )


def link_to(page: str, address: str, file: str) -> str:
    """Return the address of ``file`` on an index's page for its project; empty where it is not there."""
    for link in _LINK.findall(page):
        bare = link.partition("#")[0]
        if unquote(bare.rpartition("/")[2]) == file:
            return urljoin(address, bare)
    return ""


def _client(sources: PackageSources) -> httpx.Client:
    certificate = sources.certificate or os.environ.get("SSL_CERT_FILE", "")
    context = ssl.create_default_context(cafile=certificate or None)
    return httpx.Client(verify=context, timeout=_TIMEOUT_S, follow_redirects=True)


def _indexes(sources: PackageSources) -> Iterator[str]:
    if not sources.no_index:
        yield sources.index_url or _INDEX
        yield from (url for url in sources.extra_index_urls if not url.startswith("file:"))


def _download(client: httpx.Client, index: str, package: SourcePackage, target: Path) -> bool:
    page = client.get(f"{index.rstrip('/')}/{package.project}/", headers={"accept": "text/html"})
    if page.status_code == httpx.codes.NOT_FOUND:
        return False
    page.raise_for_status()
    link = link_to(page.text, str(page.url), package.file)
    if not link:
        return False
    with client.stream("GET", link) as answer, target.open("wb") as file:
        answer.raise_for_status()
        for piece in answer.iter_bytes():
            file.write(piece)
    return True


def _checked(package: SourcePackage, path: Path) -> Path:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.sha256:
        raise TransferError(
            f"{package.file} has the SHA-256 digest {digest}, not {package.sha256}",
            hint="the file was changed on its way, or the index has another one: nothing of it is used",
        )
    return path


def _without_secrets(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)
