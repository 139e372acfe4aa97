"""Reads a gang's engine over HTTP: whether it is idle, and how fast it has served."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus

from longboat.cluster.gang.gang import Gang
from longboat.cluster.gang.meter import Meter
from longboat.core.states import EngineActual
from longboat.engines.contract import EngineAdapter
from longboat.gateway.http.message import ask

__all__ = ("EngineMetrics",)

MEASURE_EVERY_S = 5.0
READ_S = 2.0
SETTLE_S = 1.0
"""How long an engine must be idle before it is ended; gateways have the new endpoint table well before."""


class EngineMetrics:
    """The metrics page of one engine."""

    def __init__(self, gang: Gang, adapter: EngineAdapter) -> None:
        self._gang = gang
        self._adapter = adapter
        self._meter = Meter()

    async def measure(self) -> None:
        """Measure clients' requests for the comparison with the plan, until cancelled."""
        while True:
            if text := await self._read():
                self._meter.see(self._adapter.counters(text), time.monotonic())
            await asyncio.sleep(MEASURE_EVERY_S)

    def actual(self) -> EngineActual | None:
        """Return the figures measured so far; None before the engine was asked."""
        return self._meter.actual(max((rank.memory_bytes for rank in self._gang.states()), default=0))

    async def wait_idle(self, deadline_s: Callable[[], float]) -> None:
        """Wait until the engine was seen idle from one look to a later one: gateways learn of the draining meanwhile.

        Time alone shows nothing: on a busy machine, this process may have no turn while the engine is at work.

        deadline_s: time of the monotonic clock at which the wait ends in any case; it may change meanwhile
        """
        idle_since_s: float | None = None
        while time.monotonic() < deadline_s():
            if await self._is_busy():
                idle_since_s = None
            elif idle_since_s is None:
                idle_since_s = time.monotonic()
            elif time.monotonic() - idle_since_s >= SETTLE_S:
                return
            await asyncio.sleep(0.2)

    async def _is_busy(self) -> bool:
        text = await self._read()
        if text is None:  # it may be at work, and slow because of that
            return True
        load = self._adapter.load(text)
        return bool((load.num_running or 0) + (load.num_waiting or 0))

    async def _read(self) -> str | None:
        """Return the page; empty where there is none, or no engine listens any more; None where no page came."""
        plan = self._gang.plan
        try:
            answer = await ask(self._gang.url, "/metrics", api_key=plan.api_key if plan else "", timeout_s=READ_S)
        except ConnectionRefusedError:
            return ""
        except (OSError, ValueError):
            return None
        if answer.status == HTTPStatus.NOT_FOUND:
            return ""
        return answer.body.decode(errors="replace") if answer.status == HTTPStatus.OK else None
