"""Checks again and again which of the user's engines are there, and reports each change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from longboat.core.states import Endpoint
from longboat.engines.listed_models import listed_models
from longboat.gateway.http.message import ask
from longboat.gateway.upstreams.health import LateError, is_there
from longboat.spec.files.standalone_gateway import HealthSpec

__all__ = ("UpstreamWatch", "Watched")

LATE_IN_A_ROW = 3
"""A busy engine answers late; one that is late so often counts as down."""


@dataclass(slots=True)
class Watched:
    """One engine. problem: why it is not ready; None before it was looked at."""

    endpoint: Endpoint
    problem: str | None = None
    num_late: int = 0
    # the models that it lists, with the tokens of their contexts; empty where it does not say
    listed: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        return self.problem == ""

    @property
    def state(self) -> str:
        """For people: ready, down, or not known yet."""
        return "ready" if self.is_ready else "unknown" if self.problem is None else "down"

    def as_endpoint(self) -> Endpoint:
        """Return the endpoint as gateways get it."""
        context_tokens = self.listed.get(self.endpoint.model, 0)
        return replace(self.endpoint, ready=self.is_ready, context_tokens=context_tokens)

    @property
    def doubt(self) -> str:
        """Why it is down, or why requests may fail although it is ready. Some engines take any name of a model."""
        if self.problem or not self.listed or self.endpoint.model in self.listed:
            return self.problem or ""
        return f"it lists {', '.join(list(self.listed)[:3])}, not {self.endpoint.model}"


class UpstreamWatch:
    """One task for each engine, so that a silent one delays no other; ``on_change(engine)`` at every change."""

    def __init__(self, on_change: Callable[[Watched], None]) -> None:
        self._on_change = on_change
        self._watched: dict[str, Watched] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._health = HealthSpec()

    @property
    def watched(self) -> tuple[Watched, ...]:
        """Return all engines, in the order that they were given."""
        return tuple(self._watched.values())

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints as gateways get them."""
        return tuple(engine.as_endpoint() for engine in self.watched)

    async def begin(self, endpoints: Iterable[Endpoint], health: HealthSpec) -> None:
        """Look at all engines once without calling ``on_change``, and keep looking from then on."""
        self._health = health
        engines = {_key(endpoint): Watched(endpoint) for endpoint in endpoints}
        await asyncio.gather(*(self._look(engine) for engine in engines.values()))
        self._watched = engines
        self._start()

    def change(self, endpoints: Iterable[Endpoint], health: HealthSpec) -> None:
        """Take other engines, or another way to check them. Engines that stay keep their state."""
        old, self._health = self._watched, health
        self._watched = {}
        for endpoint in endpoints:
            engine = old.get(_key(endpoint)) or Watched(endpoint)
            engine.endpoint = endpoint
            self._watched[_key(endpoint)] = engine
        self.close()
        self._start()

    def close(self) -> None:
        """Look at none any more."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks = {}

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = {key: loop.create_task(self._go_on(engine)) for key, engine in self._watched.items()}

    async def _go_on(self, engine: Watched) -> None:
        while True:
            if engine.problem is not None:
                await asyncio.sleep(self._health.every_s)
            before = engine.problem
            await self._look(engine)
            if engine.problem != before:
                self._on_change(engine)

    async def _look(self, engine: Watched) -> None:
        endpoint, health = engine.endpoint, self._health
        try:
            problem = await is_there(endpoint.url, health.path, api_key=endpoint.api_key, timeout_s=health.timeout_s)
        except LateError as error:
            engine.num_late += 1
            if engine.problem != "" or engine.num_late >= LATE_IN_A_ROW:
                engine.problem = str(error)
            return
        engine.num_late = 0
        if not problem and not engine.is_ready:
            engine.listed = await _listed(endpoint, health.timeout_s)
        engine.problem = problem


async def _listed(endpoint: Endpoint, timeout_s: float) -> Mapping[str, int]:
    """Ask an engine for its models; an engine that does not say has none."""
    try:
        answer = await ask(endpoint.url, "/v1/models", api_key=endpoint.api_key, timeout_s=timeout_s)
    except (OSError, ValueError):
        return {}
    return listed_models(answer.body)


def _key(endpoint: Endpoint) -> str:
    return f"{endpoint.model} {endpoint.url}"
