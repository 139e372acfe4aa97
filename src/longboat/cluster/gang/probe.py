"""Questions to an engine that starts: it is asked for a token until it makes one, then for its context."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from longboat.core.errors import EngineError
from longboat.engines.contract import Probe
from longboat.engines.listed_models import listed_models
from longboat.gateway.http.message import ask

__all__ = ("context_tokens", "wait_for_token")

CONNECT_EVERY_S = 0.05
ANSWERED_EVERY_S = 0.5
FINAL = (400, 401, 403, 404, 405, 422, 501)
LIST_TIMEOUT_S = 5.0
REFUSED_S = 30.0
"""An engine that refuses the readiness request itself for this long will never be ready."""


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
    pause_s, refused_since_s = CONNECT_EVERY_S, None
    while True:
        with contextlib.suppress(OSError, ValueError):
            answer = await ask(
                url,
                probe.path,
                method="POST",
                body=probe.body,
                headers=probe.headers,
                api_key=api_key,
                timeout_s=token_timeout_s,
            )
            if answer.status == 200:
                return
            text = answer.body[:200].decode(errors="replace")
            said = f"the engine answers {answer.status} to the readiness request: {text}"
            on_refusal(said)
            pause_s = min(pause_s * 2, ANSWERED_EVERY_S)
            if answer.status not in FINAL:
                refused_since_s = None
            elif refused_since_s is None:
                refused_since_s = time.monotonic()
            elif time.monotonic() - refused_since_s > REFUSED_S:
                raise EngineError(
                    said, hint="does the engine serve this model for completions? longboat logs shows more"
                )
        await asyncio.sleep(pause_s)


async def context_tokens(url: str, api_key: str, model: str) -> int:
    """Return the tokens that a request to this model may have, as its engine says; 0 where it does not say."""
    try:
        answer = await ask(url, "/v1/models", api_key=api_key, timeout_s=LIST_TIMEOUT_S)
    except (OSError, ValueError):
        return 0
    return listed_models(answer.body).get(model, 0)
