"""Small HTTP questions to an engine: is it alive with a real token, how busy is it."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from longboat.core.errors import EngineError
from longboat.engines.contract import Probe

__all__ = ("ask", "wait_for_token")

CONNECT_EVERY_S = 0.05
ANSWERED_EVERY_S = 0.5
FINAL = (400, 401, 403, 422)
REFUSED_S = 30.0
"""An engine that refuses the readiness request itself for so long will never be ready."""


async def ask(
    url: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None, timeout_s: float = 5.0
) -> tuple[int, bytes]:
    """One request; POST when there is a body. Raises OSError or http.client.HTTPException when no answer came."""
    return await asyncio.to_thread(_ask, url, path, body, dict(headers or {}), timeout_s)


async def wait_for_token(
    url: str,
    probe: Probe,
    api_key: str,
    *,
    token_timeout_s: float = 120.0,
    on_refusal: Callable[[str], None] = lambda _text: None,
) -> None:
    """Return when the engine at ``url`` answered the probe with 200: it has made a token.

    on_refusal: told what the engine says instead; one that is not up yet refuses connections or answers 503
    Raises EngineError when it goes on refusing the request itself.
    """
    headers = {**probe.headers, "Authorization": f"Bearer {api_key}"}
    pause_s, refused_since_s = CONNECT_EVERY_S, None
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, text = await ask(url, probe.path, body=probe.body, headers=headers, timeout_s=token_timeout_s)
            if status == 200:
                return
            said = f"the engine answers {status} to the readiness request: {text[:200].decode(errors='replace')}"
            on_refusal(said)
            pause_s = min(pause_s * 2, ANSWERED_EVERY_S)
            if status not in FINAL:
                refused_since_s = None
            elif refused_since_s is None:
                refused_since_s = time.monotonic()
            elif time.monotonic() - refused_since_s > REFUSED_S:
                raise EngineError(
                    said, hint="does the engine serve this model for completions? longboat logs shows more"
                )
        await asyncio.sleep(pause_s)


def _ask(url: str, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float) -> tuple[int, bytes]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("POST" if body is not None else "GET", path, body=body, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
