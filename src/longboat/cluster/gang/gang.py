"""A gang's life as its supervisor sees it: prepare every rank, start them together, watch each, end all as one."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence

from longboat.cluster.gang.heartbeat_publisher import GangPulse
from longboat.cluster.protocol.messages import AgentFacts, RankHealth, RankLoss
from longboat.cluster.protocol.model import GangIdentity, ServedModel
from longboat.cluster.protocol.ports import AgentPort
from longboat.core.errors import EngineError, UserInputError
from longboat.core.plan import GangPlan, GangShape, RankPlan
from longboat.core.states import START_PHASES, Phase, RankState
from longboat.engines.contract import EngineAdapter
from longboat.spec.types.source import is_fetched

__all__ = ("AGENT_SILENCE_S", "Gang")

AGENT_SILENCE_S = 5.0
"""An agent that answers no renewal for this long is treated as lost. The agent's own lease is longer."""

PREPARE_S = 600.0
RENEW_EVERY_S = 1.0


class Gang:
    """The ranks of one engine. Not restartable: a gang that lost a rank is ended, and another one takes its place."""

    def __init__(self, agents: Sequence[AgentPort], adapter: EngineAdapter) -> None:
        self._agents = tuple(agents)
        self.adapter = adapter
        self.plan: GangPlan | None = None
        self.ranks: tuple[RankState, ...] = ()
        self.health: dict[int, RankHealth] = {}
        self._early_head: asyncio.Task[RankState] | None = None
        self._pulse: GangPulse | None = None
        self.revision = ""  # of what changes results, as the head's node knows it

    @property
    def url(self) -> str:
        """Base URL of the engine; empty before the gang has a plan."""
        return f"http://{self.plan.head.address}:{self.plan.head.ports['api']}" if self.plan else ""

    @property
    def beats(self) -> str:
        """host:port where heartbeats are heard; empty: nowhere."""
        return self._pulse.address if self._pulse else ""

    async def fetch(self) -> None:
        """Have every node fetch the model at once: they share its pieces."""
        await asyncio.gather(*(agent.fetch() for agent in self._agents))

    async def prepare(self, model: ServedModel, shape: GangShape, identity: GangIdentity) -> GangPlan:
        """Ask every node for its address, ports and files, and make the plan of it.

        The head's rank is started already while the other nodes are asked, where the engine allows it.
        """
        requests = self.adapter.ports(shape)
        purposes = [tuple(r.purpose for r in requests if r.node_rank == rank) for rank in range(len(self._agents))]
        late = "the node of rank 0"
        try:
            async with asyncio.timeout(PREPARE_S):
                head = await self._agents[0].prepare(purposes=purposes[0], peer=None)
                late = "one of the further nodes"
                if len(self._agents) > 1 and self.adapter.head_starts_alone:
                    plan = _plan(model, shape, identity, (head,))
                    self._early_head = asyncio.create_task(self._agents[0].start(plan))
                others = await asyncio.gather(
                    *(
                        agent.prepare(purposes=wanted, peer=head.address)
                        for agent, wanted in zip(self._agents[1:], purposes[1:], strict=True)
                    )
                )
        except TimeoutError as error:
            what = f"{late} did not find the model and the engine within {PREPARE_S:g} s"
            raise EngineError(what, hint="look at the load and the disks of the model's nodes") from error
        _check_paths(model.source, (head, *others))
        self.plan, self.revision = _plan(model, shape, identity, (head, *others)), head.revision
        self._pulse = GangPulse.of(self.plan, self._agents[0].own_beat)
        return self.plan

    async def start(self) -> tuple[RankState, ...]:
        """Start all ranks at once. Raises the first failure after the rest was given time to answer.

        Agents are renewed meanwhile: one that is done may have to wait long for another that is not.
        """
        assert self.plan is not None
        plan, early = self.plan, self._early_head
        starts = [early or self._agents[0].start(plan), *(agent.start(plan) for agent in self._agents[1:])]
        renewals = [asyncio.create_task(self._renew(i, agent)) for i, agent in enumerate(self._agents)]
        try:
            answers = await asyncio.gather(*starts, return_exceptions=True)
        finally:
            for renewal in renewals:
                renewal.cancel()
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        if early is not None:
            self._agents[0].know(plan)
        self.ranks = tuple(answer for answer in answers if isinstance(answer, RankState))
        return self.ranks

    async def follow_phases(self, on_phase: Callable[[Phase], None]) -> None:
        """Call ``on_phase`` with the phase of the slowest rank, of those whose logs tell one, until it is cancelled."""
        told: dict[int, Phase] = {}

        async def follow(node_rank: int, agent: AgentPort) -> None:
            while True:
                phase = await agent.phase_after(told.get(node_rank, Phase.STARTING))
                if phase is not told.get(node_rank, Phase.STARTING):
                    told[node_rank] = phase
                    on_phase(min(told.values(), key=START_PHASES.index))

        # an agent that does not answer is a loss, which others find
        await asyncio.gather(*(follow(i, agent) for i, agent in enumerate(self._agents)), return_exceptions=True)

    async def stage(self, source: str, revision: str) -> str:
        """Put an adapter's contents on all nodes and return their folder, which must be the same everywhere."""
        folders = set(await asyncio.gather(*(agent.stage(source, revision) for agent in self._agents)))
        if len(folders) > 1:
            what = f"the nodes keep {source} in different folders: {', '.join(sorted(folders))}"
            raise UserInputError(what, hint="set LONGBOAT_HOME to the same folder on every node")
        return folders.pop()

    async def keep_adapters(self, revisions: tuple[str, ...]) -> None:
        """Let all nodes remove the copies of other revisions when they need the room."""
        await asyncio.gather(*(agent.keep_adapters(revisions) for agent in self._agents))

    async def first_loss(self) -> RankLoss:
        """Return as soon as any rank, agent or link of the gang is lost."""
        watches = [asyncio.create_task(self._watch(i, agent)) for i, agent in enumerate(self._agents)]
        watches += [asyncio.create_task(self._renew(i, agent)) for i, agent in enumerate(self._agents)]
        if self._pulse is not None:
            watches.append(asyncio.create_task(self._pulse.loss()))
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            return next(iter(done)).result()
        finally:
            for watch in watches:
                watch.cancel()

    async def stop(self, grace_s: float, *, on_request: bool = True, wait_s: float = 10.0) -> None:
        """End all ranks; agents that do not answer are killed, and their ranks end with them.

        on_request: not because a rank crashed, for which a request may be to blame
        """
        await self._end_early_start()
        stops = (
            asyncio.wait_for(agent.stop(grace_s, on_request=on_request), grace_s + wait_s) for agent in self._agents
        )
        results = await asyncio.gather(*stops, return_exceptions=True)
        for agent, result in zip(self._agents, results, strict=True):
            if isinstance(result, BaseException):
                agent.kill()
        if self._pulse is not None:
            self._pulse.close()

    async def _end_early_start(self) -> None:
        """Cancel a start under way: such a rank has no process yet that could be ended."""
        if self._early_head is not None:
            self._early_head.cancel()
            await asyncio.gather(self._early_head, return_exceptions=True)

    def states(self) -> tuple[RankState, ...]:
        """Return the ranks with their newest memory and CPU time."""
        return tuple(_with_health(rank, self.health.get(rank.node_rank)) for rank in self.ranks)

    async def _watch(self, node_rank: int, agent: AgentPort) -> RankLoss:
        try:
            return await agent.wait_lost()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # Ray tells of a dead actor or node by many classes; all of them mean: gone
            return RankLoss(node_rank=node_rank, reason=f"its agent is gone ({type(error).__name__})")

    async def _renew(self, node_rank: int, agent: AgentPort) -> RankLoss:
        heard_at_s = time.monotonic()
        while True:
            try:
                health = await asyncio.wait_for(agent.renew(), AGENT_SILENCE_S / 2)
                self.health[node_rank], heard_at_s = health, time.monotonic()
            except asyncio.CancelledError:
                raise
            except Exception as error:
                silent_s = time.monotonic() - heard_at_s
                if silent_s > AGENT_SILENCE_S:
                    why = f"its agent did not answer for {silent_s:.0f} s ({type(error).__name__})"
                    return RankLoss(node_rank=node_rank, reason=why, on_request=True)
            else:
                if self.ranks and not health.alive:
                    return RankLoss(node_rank=node_rank, reason="it is not alive any more")
            await asyncio.sleep(RENEW_EVERY_S)


def _check_paths(source: str, facts: Sequence[AgentFacts]) -> None:
    """Refuse fetched weights that nodes keep at different paths: all ranks get the head's path."""
    paths = sorted({fact.model_path for fact in facts})
    if is_fetched(source) and len(paths) > 1:
        raise UserInputError(
            f"the nodes have different weights of {source}: {', '.join(paths)}",
            hint="finish its upload, let every node see the same files, and use the same LONGBOAT_HOME everywhere",
        )


def _plan(model: ServedModel, shape: GangShape, identity: GangIdentity, facts: Sequence[AgentFacts]) -> GangPlan:
    ranks = tuple(
        RankPlan(
            node_rank=rank,
            node_id=fact.node_id,
            address=fact.address,
            interface=fact.interface,
            ports=fact.ports,
            gpu_ids=fact.gpu_ids,
        )
        for rank, fact in enumerate(facts)
    )
    return GangPlan(
        fleet=identity.fleet,
        model=model.name,
        source=model.source,
        model_path=facts[0].model_path,
        replica=identity.replica,
        generation=identity.generation,
        shape=shape,
        ranks=ranks,
        context_tokens=model.context,
        task=model.task,
        media=model.media,
        extra_args=model.engine.args,
        options=model.engine.options,
        adapters=model.adapters,
        api_key=identity.api_key,
    )


def _with_health(rank: RankState, health: RankHealth | None) -> RankState:
    if health is None:
        return rank
    return dataclasses.replace(rank, rss_bytes=health.rss_bytes, cpu_s=health.cpu_s, memory_bytes=health.memory_bytes)
