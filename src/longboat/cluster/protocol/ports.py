"""The seams of the supervisor: how it reaches its agents and the controller, and the Ray side of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from longboat.cluster.protocol.messages import AgentFacts, Announcement, RankHealth, RankLoss, Verdict
from longboat.core.plan import GangPlan
from longboat.core.states import Phase, RankState
from longboat.routing.health.liveness import Beat

__all__ = ("AgentPort", "ControllerPort", "RayAgent", "ServeController")


class AgentPort(Protocol):
    """One agent of the gang. Every call may raise when the agent or its node is gone."""

    @property
    def own_beat(self) -> Callable[[], Beat | None] | None:
        """The heartbeat of its rank, where the agent lives in the supervisor's process; else None."""

    async def fetch(self) -> None: ...
    async def prepare(self, *, purposes: tuple[str, ...], peer: str | None) -> AgentFacts: ...
    async def start(self, plan: GangPlan) -> RankState: ...
    def know(self, plan: GangPlan) -> None: ...
    async def phase_after(self, known: Phase) -> Phase: ...
    async def stage(self, source: str, revision: str) -> str: ...
    async def keep_adapters(self, revisions: tuple[str, ...]) -> None: ...
    async def renew(self) -> RankHealth: ...
    async def wait_lost(self) -> RankLoss: ...
    async def stop(self, grace_s: float, *, on_request: bool = True) -> None: ...
    def kill(self) -> None: ...


class ControllerPort(Protocol):
    """The fleet controller."""

    async def announce(self, announcement: Announcement) -> Verdict: ...


class RayAgent:
    """A NodeAgent actor."""

    own_beat = None

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def fetch(self) -> None:
        await self._handle.fetch.remote()

    async def prepare(self, *, purposes: tuple[str, ...], peer: str | None) -> AgentFacts:
        facts: AgentFacts = await self._handle.prepare.remote(purposes=purposes, peer=peer)
        return facts

    async def start(self, plan: GangPlan) -> RankState:
        state: RankState = await self._handle.start.remote(plan)
        return state

    def know(self, plan: GangPlan) -> None:
        self._handle.know.remote(plan)

    async def phase_after(self, known: Phase) -> Phase:
        phase: Phase = await self._handle.phase_after.remote(known)
        return phase

    async def stage(self, source: str, revision: str) -> str:
        path: str = await self._handle.stage.remote(source, revision)
        return path

    async def keep_adapters(self, revisions: tuple[str, ...]) -> None:
        await self._handle.keep_adapters.remote(revisions)

    async def renew(self) -> RankHealth:
        health: RankHealth = await self._handle.renew.remote()
        return health

    async def wait_lost(self) -> RankLoss:
        loss: RankLoss = await self._handle.wait_lost.remote()
        return loss

    async def stop(self, grace_s: float, *, on_request: bool = True) -> None:
        await self._handle.stop.remote(grace_s, on_request=on_request)

    def kill(self) -> None:
        import ray

        ray.kill(self._handle)


class ServeController:
    """The controller's deployment, found by the name of its application; absent while the fleet is being deployed."""

    def __init__(self, app_name: str, timeout_s: float = 3.0) -> None:
        self._app_name = app_name
        self._timeout_s = timeout_s
        self._handle: Any = None

    async def announce(self, announcement: Announcement) -> Verdict:
        if self._handle is None:
            self._handle = await asyncio.to_thread(self._find)
        verdict: Verdict = await asyncio.wait_for(self._handle.announce.remote(announcement), self._timeout_s)
        return verdict

    def _find(self) -> Any:
        from ray import serve

        return serve.get_app_handle(self._app_name)
