"""ASGI middleware in SGLang's API server: asks for the engine's key, and honours the gateway's terms of a request.

SGLang's own key would stand in its arguments, and in its log; this one is read from the environment.
"""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from typing import Any

from longboat_sglang.adapters import DESK
from longboat_sglang.resume import STATE
from longboat_sglang.salts import BODY, PATH, Body
from longboat_vllm.middleware import ResumeMiddleware
from longboat_vllm.steps import STEPS

__all__ = ("EngineMiddleware",)

_OPEN = ("/metrics", "/ready")
"""Paths without a key. ``/health`` needs it, because it generates a token."""
_ERROR = {"message": "this engine serves only its fleet's gateway", "type": "Unauthorized", "code": 401}


class EngineMiddleware(ResumeMiddleware):
    """The middleware between SGLang's server and its routes."""

    takes_media = False  # never proved
    tells_apart = False

    def __init__(self, app: Any) -> None:
        super().__init__(app, state=STATE, steps=STEPS)
        self._desk = DESK

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or self._is_open(scope) or self._knows_key(scope):
            if scope["type"] == "http":
                self._prefixes.begin()
            if scope.get("path") == PATH:
                body = Body(scope, receive)
                BODY.set(body)
                receive = body.receive
            await super().__call__(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _refuse(send)

    def _is_open(self, scope: MutableMapping[str, Any]) -> bool:
        path = scope["path"].rstrip("/")
        return self._key_digest is None or (scope["type"] == "http" and path in _OPEN)


async def _refuse(send: Any) -> None:
    body = json.dumps({"error": _ERROR}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
