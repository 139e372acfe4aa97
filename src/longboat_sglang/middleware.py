"""ASGI middleware in SGLang's API server: asks for the engine's key, and honours the gateway's terms of a request.

SGLang's own key would stand in its arguments, and in its log; this one is read from the environment.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, ClassVar

from longboat_sglang.adapters import DESK
from longboat_sglang.resume import STATE
from longboat_sglang.salts import BODY, PATH, Body
from longboat_vllm.middleware import ResumeMiddleware
from longboat_vllm.steps import STEPS

__all__ = ("EngineMiddleware",)


class EngineMiddleware(ResumeMiddleware):
    """The middleware between SGLang's server and its routes."""

    open_paths: ClassVar[tuple[str, ...]] = ("/metrics", "/ready")  # not /health: it generates a token
    takes_media = False  # never proved
    tells_apart = False

    def __init__(self, app: Any) -> None:
        super().__init__(app, state=STATE, steps=STEPS)
        self._desk = DESK

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http" and self._may_enter(scope):
            self._prefixes.begin()
            if scope["path"] == PATH:
                body = Body(scope, receive)
                BODY.set(body)
                receive = body.receive
        await super().__call__(scope, receive, send)
