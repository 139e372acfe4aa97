"""Small HTTP questions to an engine: is it alive with a real token, how busy is it."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Mapping
from urllib.parse import urlsplit

from longboat.engines.contract import Probe

__all__ = ("ask", "wait_for_token")

CONNECT_EVERY_S = 0.05


async def ask(
    url: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None, timeout_s: float = 5.0
) -> tuple[int, bytes]:
    """One request; POST when there is a body. Raises OSError or http.client.HTTPException when no answer came."""
    return await asyncio.to_thread(_ask, url, path, body, dict(headers or {}), timeout_s)


async def wait_for_token(url: str, probe: Probe, api_key: str, *, token_timeout_s: float = 120.0) -> None:
    """Return when the engine at ``url`` answered the probe with 200: it has made a token.

    Runs until it is cancelled; an engine that is not up yet refuses connections or answers 503.
    """
    headers = {**probe.headers, "Authorization": f"Bearer {api_key}"}
    while True:
        try:
            status, _ = await ask(url, probe.path, body=probe.body, headers=headers, timeout_s=token_timeout_s)
            if status == 200:
                return
        except (OSError, http.client.HTTPException):
            pass
        await asyncio.sleep(CONNECT_EVERY_S)


def _ask(url: str, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("POST" if body is not None else "GET", path, body=body, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
