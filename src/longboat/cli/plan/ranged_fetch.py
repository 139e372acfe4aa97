"""Reads ranges of files by HTTP: how `plan` asks the hub for headers without downloading the weights."""

from __future__ import annotations

import os
from collections.abc import Callable

import httpx

from longboat.core.errors import TransferError

__all__ = ("ranged_fetch",)

TIMEOUT_S = 20.0
TOKEN_VARIABLES = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
HUB_HOST = "huggingface.co"


def ranged_fetch(transport: httpx.BaseTransport | None = None) -> Callable[[str, int, int], bytes]:
    """Return a reader of (address, first byte, bytes). A server that ignores ranges is read up to the last byte wanted.

    The reader raises LookupError where there is no such file, TransferError where the network or the server fails.
    transport: instead of the network, for tests
    """
    client = httpx.Client(timeout=TIMEOUT_S, follow_redirects=True, transport=transport)

    def fetch(url: str, offset: int, length: int) -> bytes:
        headers = {"Range": f"bytes={offset}-{offset + length - 1}", **_authorization(url)}
        try:
            with client.stream("GET", url, headers=headers) as response:
                return _read(response, offset, length)
        except httpx.HTTPError as error:
            raise TransferError(
                f"{url} could not be read: {type(error).__name__} {error}",
                hint="is there a network here? A folder, a GGUF file or a config.json needs none",
            ) from None

    return fetch


def _authorization(url: str) -> dict[str, str]:
    """Return the user's hub token, for the hub only."""
    token = next((value for name in TOKEN_VARIABLES if (value := os.environ.get(name))), None)
    return {"Authorization": f"Bearer {token}"} if token and httpx.URL(url).host == HUB_HOST else {}


def _read(response: httpx.Response, offset: int, length: int) -> bytes:
    if response.status_code in (404, 410):
        raise LookupError(str(response.url))
    if response.status_code == 416:
        return b""
    if response.status_code in (401, 403):
        raise TransferError(
            f"{response.url} may not be read ({response.status_code})",
            hint="accept the model's terms on its page, and set HF_TOKEN",
        )
    if response.status_code >= 400:
        raise TransferError(f"{response.url} answered {response.status_code}", hint="try again later")
    start = offset if response.status_code == 200 else 0
    data = bytearray()
    for piece in response.iter_bytes():
        data += piece
        if len(data) >= start + length:
            break
    return bytes(data[start : start + length])
