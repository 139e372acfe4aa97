"""ASGI middleware in SGLang's API server: asks for the engine's key, and honours the gateway's terms of a request.

SGLang's own key would stand in its arguments, and in its log; this one is read from the environment.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, ClassVar

from longboat_sglang.adapters import DESK
from longboat_sglang.resume import STATE
from longboat_sglang.salts import BODY, PATH, Body
from longboat_vllm.middleware import ResumeMiddleware, answer_json
from longboat_vllm.steps import STEPS

__all__ = ("EngineMiddleware",)

_AUDIO = "/v1/audio/"


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
            if scope["path"].startswith(_AUDIO) and _is_deaf(scope):
                return await answer_json(send, 404, {"detail": "Not Found"})
            self._prefixes.begin()
            if scope["path"] == PATH:
                body = Body(scope, receive)
                BODY.set(body)
                receive = body.receive
        await super().__call__(scope, receive, send)


def _is_deaf(scope: MutableMapping[str, Any]) -> bool:
    """Return whether the model takes no audio: SGLang has the paths for every model, and fails in them with 500."""
    serving = getattr(getattr(scope.get("app"), "state", None), "openai_serving_transcription", None)
    config = getattr(getattr(serving, "tokenizer_manager", None), "model_config", None)
    return getattr(config, "is_audio_understandable_model", True) is False
