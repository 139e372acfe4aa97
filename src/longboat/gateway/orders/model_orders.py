"""Starting and ending models that no file has: one process for each order, which does what ``longboat start`` does."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from longboat.gateway.http.responses import Refusal
from longboat.gateway.orders.worker_process import ask_worker

__all__ = ("ModelOrders",)

_WORKER = (sys.executable, "-m", "longboat.cli.model_orders")
_DEADLINE_S = 180.0
"""It connects to the cluster and asks every node what is on it."""
_CODES = {400: "bad_model", 503: "change_failed"}


class ModelOrders:
    """The orders of one gateway process: one after another, and none waits."""

    def __init__(self, run: Path | None, *, command: Sequence[str] = _WORKER, deadline_s: float = _DEADLINE_S) -> None:
        """run: the run folder of this node, in which the cluster is found; None: the gateway belongs to no fleet"""
        self._run = run
        self._command = tuple(command)
        self._deadline_s = deadline_s
        self._running: asyncio.Task[dict[str, Any] | Refusal] | None = None

    async def start(self, body: bytes, by: str) -> dict[str, Any] | Refusal:
        """Start the model of a form; return the document of the response. by: whom the fleet names as the operator"""
        try:
            form = orjson.loads(body)
        except orjson.JSONDecodeError:
            form = None
        if not isinstance(form, dict):
            optional = '"name", "engine", "replicas", "context", "cpus" and "price"'
            message = f'Send {{"source": MODEL}} as one JSON object, and {optional} where they are needed.'
            return Refusal(status=400, message=message, code="bad_model")
        return await self._carry_out({**form, "order": "start", "by": by})

    async def end(self, model: str) -> dict[str, Any] | Refusal:
        """End a model that was started here; return the document of the response."""
        return await self._carry_out({"order": "end", "model": model})

    async def _carry_out(self, order: dict[str, Any]) -> dict[str, Any] | Refusal:
        """Return the document of the change. A Refusal has the planner's own words and hint.

        The order is carried out to its end, also where its client leaves meanwhile.
        """
        if self._run is None:
            message = "This gateway belongs to no fleet that Longboat runs: its models come with its endpoint table."
            return Refusal(status=409, message=message, code="no_fleet")
        if self._running is not None and not self._running.done():
            message = "Another model is being started or ended here. Try again in a moment."
            return Refusal(status=409, message=message, code="another_change")
        self._running = asyncio.create_task(self._ask(order))
        return await asyncio.shield(self._running)

    async def _ask(self, order: dict[str, Any]) -> dict[str, Any] | Refusal:
        try:
            found = await ask_worker(self._command, orjson.dumps(order), self._run, self._deadline_s)
        except TimeoutError:
            limit = f"{self._deadline_s:.0f} s"
            message = f"The change was not confirmed within {limit}: longboat status shows whether it was made."
            return Refusal(status=504, message=message, code="change_not_confirmed")
        except (OSError, ValueError, TypeError) as error:
            return Refusal(status=503, message=f"The change failed: {error}.", code="change_failed")
        if "value" in found:
            return dict(found["value"])
        status, hint = int(found.get("status", 503)), f" Hint: {found['hint']}." if found.get("hint") else ""
        return Refusal(status=status, message=f"{found.get('error')}.{hint}", code=_CODES.get(status, "change_failed"))
