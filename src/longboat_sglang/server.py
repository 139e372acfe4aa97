"""Puts the middleware into SGLang's server: without it, the server would answer requests without a key."""

from __future__ import annotations

import functools
from typing import Any

from longboat_sglang.adapters import DESK
from longboat_sglang.middleware import EngineMiddleware
from longboat_sglang.own_request import freeze_garbage
from longboat_sglang.prefixes.front_end import ACCOUNT
from longboat_vllm.steps import STEPS

__all__ = ("install",)

_MARK = "_longboat_guarded"


def install() -> None:
    """Let every request pass the middleware. Raises AttributeError where SGLang sets its server up elsewhere."""
    from sglang.srt.entrypoints import http_server

    set_up = http_server._setup_and_run_http_server
    if hasattr(set_up, _MARK):
        return
    if http_server._freeze_gc_after_server_warmup is not freeze_garbage:
        http_server._freeze_gc_after_server_warmup = freeze_garbage
    http_server._setup_and_run_http_server = _guarded(set_up)


def _guarded(set_up: Any) -> Any:
    """Wrap the server's set-up so that every request passes the middleware."""

    @functools.wraps(set_up)
    def set_up_with_middleware(
        server_args: Any, tokenizer_manager: Any, templates: Any, ports: Any, infos: Any, *args: Any, **kwargs: Any
    ) -> Any:
        from sglang.srt.entrypoints import http_server

        DESK.manager = tokenizer_manager
        STEPS.unfinished = lambda: len(tokenizer_manager.rid_to_state)
        ACCOUNT.offer(tokenizer_manager, infos[0])
        http_server.app.add_middleware(EngineMiddleware)
        return set_up(server_args, tokenizer_manager, templates, ports, infos, *args, **kwargs)

    setattr(set_up_with_middleware, _MARK, True)
    return set_up_with_middleware
