"""Plans for the console: each question is one process of the lowest priority, so the gateway's loop never computes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from longboat.gateway.console.sections import Sections
from longboat.gateway.http.responses import Refusal
from longboat.gateway.orders.worker_process import ask_worker

__all__ = ("PlanWorkers",)

_WORKER = (sys.executable, "-m", "longboat.cli.what_if")
_DEADLINE_S = 60.0
_AT_ONCE = 2
_WAITING = 6
_AGES_S = {"models": 3600.0}
_AGE_S = 60.0
"""Seconds for which the answer to an equal question is given again."""

_MAX_ANSWERS = 16


class PlanWorkers:
    """The planner's processes of one gateway process: two at once, six that wait, each with a deadline."""

    def __init__(self, run: Path | None, *, command: Sequence[str] = _WORKER, deadline_s: float = _DEADLINE_S) -> None:
        """run: the run folder of this node, in which the cluster is found; None: the user's own"""
        self._run_folder = run
        self._command = tuple(command)
        self._deadline_s = deadline_s
        self._free = asyncio.Semaphore(_AT_ONCE)
        self._under_way = 0
        self._answers = Sections(_MAX_ANSWERS)

    async def answer(self, question: dict[str, Any], now_s: float) -> dict[str, Any] | Refusal:
        """Return the planner's document. now_s: monotonic. A Refusal has the planner's own words and hint."""
        try:
            body = orjson.dumps(question, option=orjson.OPT_SORT_KEYS)
        except TypeError:
            message = "The fields of the form are nested too deep. Send texts, numbers, and true or false."
            return Refusal(status=400, message=message, code="bad_plan")
        kind, name = str(question.get("kind", "")), ("plan", body.decode())
        try:
            found: dict[str, Any] = await self._answers.raw(
                name, lambda: self._run(body), now_s, _AGES_S.get(kind, _AGE_S)
            )
        except _BusyError:
            message = f"{_WAITING + _AT_ONCE} plans are under way here. Try again in a moment."
            return Refusal(status=429, message=message, code="planner_busy", retry_after_s=5)
        except TimeoutError:
            message = f"The planner was ended after {self._deadline_s:.0f} s. Ask for fewer machines, or one format."
            return Refusal(status=504, message=message, code="planner_too_slow")
        except (OSError, ValueError) as error:
            return Refusal(status=503, message=f"The planner did not answer: {error}.", code="planner_failed")
        if "value" in found:
            return dict(found["value"])
        if kind in _AGES_S:  # an error is not given again for an hour
            self._answers.forget(name)
        hint = f" Hint: {found['hint']}." if found.get("hint") else ""
        return Refusal(status=400, message=f"{found.get('error')}.{hint}", code="no_plan")

    async def _run(self, body: bytes) -> dict[str, Any]:
        if self._under_way >= _AT_ONCE + _WAITING:
            raise _BusyError
        self._under_way += 1
        try:
            async with self._free:
                return await ask_worker(self._command, body, self._run_folder, self._deadline_s, is_lowest=True)
        finally:
            self._under_way -= 1


class _BusyError(Exception):
    """Too many questions wait."""
