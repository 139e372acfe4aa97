"""Lets a middleware break a request's connection off, for which ASGI has no message."""

from __future__ import annotations

import functools
import importlib
from typing import Any

__all__ = ("BREAK_OFF", "install")

BREAK_OFF = "longboat.break_off"
"""Key in the scope of a request: a function without arguments. It is missing where the server is not uvicorn."""

_MARK = "_longboat_break_off"


def install() -> None:
    """Have uvicorn put BREAK_OFF into the scope of each request. May be called again."""
    for name in ("httptools_impl", "h11_impl"):
        try:
            cycle: Any = importlib.import_module(f"uvicorn.protocols.http.{name}").RequestResponseCycle
        except (ImportError, AttributeError):
            continue
        if not hasattr(cycle.run_asgi, _MARK):
            cycle.run_asgi = _offering(cycle.run_asgi)


def _offering(run_asgi: Any) -> Any:
    @functools.wraps(run_asgi)
    async def run_with_offer(cycle: Any, app: Any) -> None:
        if (transport := getattr(cycle, "transport", None)) is not None:
            cycle.scope[BREAK_OFF] = transport.abort
        await run_asgi(cycle, app)

    setattr(run_with_offer, _MARK, True)
    return run_with_offer
