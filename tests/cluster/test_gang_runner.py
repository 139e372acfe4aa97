"""The supervisor without Serve: a gang comes up whole or not at all, and ends whole."""

from __future__ import annotations

import asyncio
import dataclasses
import http.server
import sys
from pathlib import Path

import pytest

from cluster.test_rank_heartbeat import PLAN
from longboat.cluster.gang import gang as gang_module
from longboat.cluster.gang import phases as phases_module
from longboat.cluster.gang import probe as probe_module
from longboat.cluster.gang import resume_prover as prover_module
from longboat.cluster.gang.agent import NodeAgent
from longboat.cluster.gang.resume_prover import ProofMemory
from longboat.cluster.gang.supervisor import GangRunner
from longboat.cluster.protocol.messages import AgentFacts, Announcement, RankHealth, RankLoss, Verdict
from longboat.cluster.protocol.model import EngineSettings, GangIdentity, ServedModel
from longboat.core.errors import EngineError, UserInputError
from longboat.core.plan import GangPlan, GangShape, RankResources
from longboat.core.states import Phase, RankState, ResumeLevel
from longboat.engines.contract import RankCommand
from longboat.engines.launch.process import RankProcess, start_rank
from longboat.engines.registry import adapter_for
from longboat.engines.resume_proof import ResumeProof, Send

MODEL = ServedModel(name="tiny", source="builtin:tiny", engine=EngineSettings(kind="fake"))
REVISION = "0123456789abcdef"
SHAPE = GangShape(tensor=1, pipeline=2, num_nodes=2, resources=RankResources())


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers every completion with ``status``, says it is idle, and lists its model."""

    status = 200

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        if self.path == "/v1/models":
            self.wfile.write(b'{"data": [{"id": "tiny", "max_model_len": 4096}]}')

    def log_message(self, *args: object) -> None:
        pass


class Agent:
    """An agent that obeys; tests break it."""

    own_beat = None

    def __init__(self, rank: int, port: int) -> None:
        self.rank, self.port = rank, port
        self.stopped: list[float] = []
        self.on_request: bool | None = None  # as it was stopped
        self.killed = False
        self.lost: asyncio.Future[RankLoss] = asyncio.get_running_loop().create_future()
        self.start_error: Exception | None = None
        self.silent = False
        self.peer: str | None = "unset"
        self.phases: list[Phase] = []  # that its log tells of, one after the other
        self.model_path = "/m"
        self.known: list[int] = []  # the ranks of the whole plan, where it was given after the start

    async def prepare(self, *, purposes: tuple[str, ...], peer: str | None) -> AgentFacts:
        self.peer = peer
        return AgentFacts(
            node_id=f"n{self.rank}",
            hostname=f"h{self.rank}",
            address="127.0.0.1",
            interface="lo",
            pid=1,
            gpu_ids=(),
            ports=dict.fromkeys(purposes, self.port),
            model_path=self.model_path,
            revision="" if peer else REVISION,
        )

    async def start(self, plan: GangPlan) -> RankState:
        if self.start_error:
            raise self.start_error
        return RankState(node_rank=self.rank, node_id=f"n{self.rank}", address="127.0.0.1", pid=100 + self.rank)

    async def renew(self) -> RankHealth:
        if self.silent:
            await asyncio.sleep(3600)
        return RankHealth(node_rank=self.rank, alive=True, rss_bytes=5, cpu_s=1.0)

    async def phase_after(self, known: Phase) -> Phase:
        if not self.phases:
            await asyncio.sleep(3600)
        return self.phases.pop(0)

    def know(self, plan: GangPlan) -> None:
        self.known = [rank.node_rank for rank in plan.ranks]

    async def wait_lost(self) -> RankLoss:
        return await self.lost

    async def stop(self, grace_s: float, *, on_request: bool = True) -> None:
        self.stopped.append(grace_s)
        self.on_request = on_request

    def kill(self) -> None:
        self.killed = True


class Controller:
    """Remembers what it heard."""

    def __init__(self) -> None:
        self.heard: list[Announcement] = []
        self.verdict = Verdict(stop=False)

    async def announce(self, announcement: Announcement) -> Verdict:
        self.heard.append(announcement)
        return self.verdict

    def phases(self) -> list[Phase]:
        return [a.state.phase for a in self.heard]


def build(
    port: int, proofs: ProofMemory | None = None
) -> tuple[GangRunner, list[Agent], Controller, asyncio.Future[str]]:
    agents, controller = [Agent(rank, port) for rank in range(2)], Controller()
    died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    runner = GangRunner(
        fleet="f",
        model=MODEL,
        shape=SHAPE,
        replica="r1",
        digest="d",
        slot=lambda: 0,
        agents=agents,
        controller=controller,
        die=lambda reason: None if died.done() else died.set_result(reason),
        proofs=proofs,
    )
    return runner, agents, controller, died


async def test_a_gang_is_ready_after_a_token_came_back(engine_port: int) -> None:
    runner, agents, controller, _ = build(engine_port)
    await runner.bring_up()
    await asyncio.sleep(0.05)
    last = controller.heard[-1]
    assert last.state.phase is Phase.READY
    assert last.context_tokens == 4096, "as the engine says"
    assert last.state.url == f"http://127.0.0.1:{engine_port}"
    assert last.api_key
    assert [rank.pid for rank in last.state.ranks] == [100, 101]
    assert agents[1].peer == "127.0.0.1"
    assert [agent.known for agent in agents] == [[0, 1], []], "the head started before rank 1 was known"
    runner.check()


async def test_the_phase_of_a_gang_is_that_of_its_slowest_rank(engine_port: int) -> None:
    runner, agents, controller, _ = build(engine_port)
    agents[0].phases = [Phase.LOADING, Phase.WARMING, Phase.COMPILING, Phase.WARMING]
    agents[1].phases = [Phase.LOADING, Phase.WARMING]
    seen: list[Phase] = []
    following = asyncio.create_task(runner._gang.follow_phases(seen.append))
    async with asyncio.timeout(30):
        while agents[0].phases or agents[1].phases:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    following.cancel()
    assert seen[0] is Phase.LOADING
    assert Phase.COMPILING in seen, "one rank compiles while the other one is further"
    assert seen[-1] is Phase.WARMING
    await runner.drain(0.0)
    assert controller.heard


async def test_nodes_must_have_the_same_fetched_weights(engine_port: int) -> None:
    agents = [Agent(rank, engine_port) for rank in range(2)]
    agents[1].model_path = "/other"
    gang = gang_module.Gang(agents, adapter_for("fake"))  # type: ignore[arg-type]
    identity = GangIdentity(fleet="f", replica="r", digest="d", generation=1, api_key="k")
    await gang.prepare(MODEL, SHAPE, identity)
    with pytest.raises(UserInputError, match=r"different weights of s3://b/m: /m, /other") as caught:
        await gang.prepare(dataclasses.replace(MODEL, source="s3://b/m"), SHAPE, identity)
    assert "LONGBOAT_HOME" in caught.value.hint


async def test_a_lost_rank_ends_the_whole_gang_and_the_supervisor(engine_port: int) -> None:
    runner, agents, controller, died = build(engine_port)
    await runner.bring_up()
    agents[1].lost.set_result(RankLoss(node_rank=1, reason="signal 9", log_tail=("last words",)))
    reason = await asyncio.wait_for(died, 5)
    assert "rank 1" in reason
    assert "signal 9" in reason
    assert [agent.stopped for agent in agents] == [[0.0], [0.0]]
    assert controller.heard[-1].log_tail == ("last words",)
    assert Phase.FAILED in controller.phases()
    with pytest.raises(EngineError):
        runner.check()


@pytest.mark.parametrize("on_request", [True, False])
async def test_ranks_that_are_ended_for_a_lost_one_say_whether_a_request_may_be_to_blame(
    engine_port: int, *, on_request: bool
) -> None:
    runner, agents, _, died = build(engine_port)
    await runner.bring_up()
    agents[1].lost.set_result(RankLoss(node_rank=1, reason="its end", on_request=on_request))
    await asyncio.wait_for(died, 5)
    assert agents[0].on_request is on_request


async def test_a_rank_lost_while_starting_fails_the_start(engine_port: int) -> None:
    runner, agents, controller, _ = build(1)
    agents[0].lost.set_result(RankLoss(node_rank=0, reason="exit 1", log_tail=("ValueError: no",)))
    with pytest.raises(EngineError) as caught:
        await asyncio.wait_for(runner.bring_up(), 5)
    assert caught.value.log_tail == ("ValueError: no",)
    assert agents[1].stopped == [0.0]
    assert controller.phases()[-1] is Phase.FAILED


async def test_an_engine_that_hangs_while_it_starts_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases_module, "LIMIT_LOOK_S", 0.01)
    runner, agents, controller, _ = build(1)  # nothing listens there
    controller.verdict = Verdict(stop=False, start_s=0.2)
    agents[0].phases, agents[1].phases = [Phase.LOADING], [Phase.LOADING]
    with pytest.raises(EngineError, match=r"not ready 0 s after its start; its phase is loading"):
        await asyncio.wait_for(runner.bring_up(), 30)
    assert [agent.stopped for agent in agents] == [[0.0], [0.0]]
    assert controller.phases()[-1] is Phase.FAILED


@pytest.mark.parametrize(
    ("status", "start_s", "why"),
    [
        (500, 0.5, "not ready 0 s after its start; its phase is starting: the engine answers 500"),
        (404, None, "the engine answers 404"),  # as one that serves the model for another task
    ],
)
async def test_a_start_that_fails_says_what_the_engine_answered(
    status: int, start_s: float | None, why: str, engine_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(phases_module, "LIMIT_LOOK_S", 0.01)
    monkeypatch.setattr(probe_module, "REFUSED_S", 0.1)
    monkeypatch.setattr(Engine, "status", status)
    runner, _, controller, _ = build(engine_port)
    controller.verdict = Verdict(stop=False, start_s=start_s)
    with pytest.raises(EngineError) as caught:
        await asyncio.wait_for(runner.bring_up(), 30)
    assert why in str(caught.value)


async def test_a_rank_that_cannot_start_takes_its_sibling_down(engine_port: int) -> None:
    runner, agents, _, _ = build(engine_port)
    agents[1].start_error = EngineError("no such file")
    with pytest.raises(EngineError, match="no such file"):
        await asyncio.wait_for(runner.bring_up(), 5)
    assert agents[0].stopped == [0.0]


@pytest.mark.parametrize(("rank", "late"), [(0, "the node of rank 0"), (1, "one of the further nodes")])
async def test_a_node_that_does_not_get_ready_to_start_is_the_reason(
    rank: int, late: str, engine_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang_module, "PREPARE_S", 0.05)
    runner, agents, _, _ = build(engine_port)

    async def never(**_: object) -> AgentFacts:
        return await asyncio.sleep(3600, agents[0])  # type: ignore[arg-type]

    agents[rank].prepare = never  # type: ignore[method-assign]
    with pytest.raises(EngineError, match=f"{late} did not find the model and the engine within 0.05 s"):
        await asyncio.wait_for(runner.bring_up(), 5)


async def test_a_silent_agent_is_a_lost_rank(engine_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_module, "AGENT_SILENCE_S", 0.2)
    monkeypatch.setattr(gang_module, "RENEW_EVERY_S", 0.02)
    runner, agents, _, died = build(engine_port)
    await runner.bring_up()
    agents[1].silent = True
    assert "did not answer" in await asyncio.wait_for(died, 5)
    assert agents[0].stopped == [0.0]


async def test_a_verdict_to_stop_ends_the_gang(engine_port: int) -> None:
    runner, agents, controller, died = build(engine_port)
    await runner.bring_up()
    controller.verdict = Verdict(stop=True, reason="a newer generation")
    assert await asyncio.wait_for(died, 5) == "a newer generation"
    assert agents[0].stopped


async def test_drain_announces_first_and_stops_politely(engine_port: int) -> None:
    runner, agents, controller, _ = build(engine_port)
    await runner.bring_up()
    await runner.drain(5.0)
    phases = controller.phases()
    assert phases.index(Phase.DRAINING) < phases.index(Phase.GONE)
    assert all(agent.stopped and agent.stopped[0] > 0 for agent in agents)


async def test_agents_are_renewed_while_a_slow_sibling_starts(engine_port: int) -> None:
    runner, agents, _, _ = build(engine_port)
    go_on = asyncio.Event()
    heard: list[int] = []

    async def slow_start(plan: GangPlan) -> RankState:
        await go_on.wait()
        return RankState(node_rank=0, node_id="n0", address="127.0.0.1", pid=100)

    async def renew() -> RankHealth:
        heard.append(1)
        go_on.set()
        return RankHealth(node_rank=1, alive=False, rss_bytes=0, cpu_s=0.0)

    agents[0].start, renewed = slow_start, agents[1].renew  # type: ignore[method-assign]
    agents[1].renew = lambda: renewed() if go_on.is_set() else renew()  # type: ignore[method-assign]
    await asyncio.wait_for(runner.bring_up(), 10)
    assert heard, "no renewal before all had started"


async def test_an_agent_that_says_its_rank_is_dead_is_believed(engine_port: int) -> None:
    runner, agents, _, died = build(engine_port)
    await runner.bring_up()

    async def dead() -> RankHealth:
        return RankHealth(node_rank=1, alive=False, rss_bytes=0, cpu_s=0.0)

    agents[1].renew = dead  # type: ignore[method-assign]
    assert "not alive" in await asyncio.wait_for(died, 10)


async def test_a_replica_that_is_stopped_while_starting_is_no_failure() -> None:
    runner, agents, controller, died = build(1)
    starting = asyncio.create_task(runner.bring_up())
    await asyncio.sleep(0.2)
    await asyncio.wait_for(runner.drain(5.0), 10)
    with pytest.raises(EngineError, match="stopped"):
        await asyncio.wait_for(starting, 5)
    assert Phase.FAILED not in controller.phases()
    assert Phase.READY not in controller.phases()
    assert all(agent.stopped for agent in agents)
    assert not died.done()


async def test_what_went_wrong_on_another_node_is_told_without_its_traceback(engine_port: int) -> None:
    runner, agents, controller, _ = build(engine_port)
    wrapped = RuntimeError("a long traceback")
    wrapped.cause = EngineError("no such folder", log_tail=("the log",))  # type: ignore[attr-defined]
    agents[1].start_error = wrapped
    with pytest.raises(EngineError, match="no such folder"):
        await asyncio.wait_for(runner.bring_up(), 5)
    assert controller.heard[-1].state.detail == "no such folder"
    assert controller.heard[-1].log_tail == ("the log",)


CARRIED = ResumeProof(level=ResumeLevel.CARRIED)


async def announced_level(controller: Controller, level: ResumeLevel) -> None:
    """As the newest word of a ready replica."""
    async with asyncio.timeout(20):
        while (state := controller.heard[-1].state).resume is not level or state.phase is not Phase.READY:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_ready_replica_announces_what_it_proved(engine_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def prove(send: Send, model: str, *, timeout_s: float) -> ResumeProof:
        asked.append(model)
        return CARRIED

    monkeypatch.setattr(prover_module, "prove", prove)
    runner, _, controller, _ = build(engine_port)
    await runner.bring_up()
    await announced_level(controller, ResumeLevel.CARRIED)
    ready = [a.state for a in controller.heard if a.state.phase is Phase.READY]
    assert ready[0].resume is ResumeLevel.CARRIED
    assert asked == ["tiny"]


async def test_no_stream_begins_before_a_proof_of_some_seconds(
    engine_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prove(send: Send, model: str, *, timeout_s: float) -> ResumeProof:
        await asyncio.sleep(2.5)
        return CARRIED

    monkeypatch.setattr(prover_module, "prove", prove)
    runner, _, controller, _ = build(engine_port)
    await runner.bring_up()
    await announced_level(controller, ResumeLevel.CARRIED)
    ready = [a.state for a in controller.heard if a.state.phase is Phase.READY]
    assert all(state.resume is ResumeLevel.CARRIED for state in ready)


async def test_a_slow_proof_does_not_hold_up_readiness(engine_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prover_module, "PROOF_WAIT_S", 0.2)
    go_on = asyncio.Event()

    async def prove(send: Send, model: str, *, timeout_s: float) -> ResumeProof:
        await go_on.wait()
        return CARRIED

    monkeypatch.setattr(prover_module, "prove", prove)
    runner, _, controller, _ = build(engine_port)
    await asyncio.wait_for(runner.bring_up(), 20)
    await announced_level(controller, ResumeLevel.NONE)
    go_on.set()
    await announced_level(controller, ResumeLevel.CARRIED)


async def test_an_engine_that_failed_its_proof_gets_another_chance(
    engine_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    proofs = [ResumeProof(level=ResumeLevel.REPLAY, detail="busy"), ResumeProof(level=ResumeLevel.NONE), CARRIED]

    async def prove(send: Send, model: str, *, timeout_s: float) -> ResumeProof:
        return proofs.pop(0)

    monkeypatch.setattr(prover_module, "prove", prove)
    monkeypatch.setattr(prover_module, "PROOFS_AFTER_S", (0.0, 0.1, 0.1))
    runner, _, controller, _ = build(engine_port)
    await runner.bring_up()
    await announced_level(controller, ResumeLevel.CARRIED)
    ready = [a.state for a in controller.heard if a.state.phase is Phase.READY]
    assert all(state.resume is not ResumeLevel.NONE for state in ready), "a worse proof does not count"


@pytest.mark.parametrize("level", [ResumeLevel.CARRIED, ResumeLevel.NONE])
async def test_a_replica_claims_what_its_revision_proved_here_and_proves_it_again(
    level: ResumeLevel, engine_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, proofs = asyncio.Event(), ProofMemory(tmp_path)
    proofs.remember(REVISION)

    async def prove(send: Send, model: str, *, timeout_s: float) -> ResumeProof:
        await go_on.wait()
        return ResumeProof(level=level)

    monkeypatch.setattr(prover_module, "prove", prove)
    runner, _, controller, _ = build(engine_port, proofs)
    await runner.bring_up()
    await announced_level(controller, ResumeLevel.CARRIED)
    go_on.set()
    await announced_level(controller, level)
    async with asyncio.timeout(20):
        while proofs.has(REVISION) is (level is ResumeLevel.NONE):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_proof_is_remembered_for_its_revision_alone(
    engine_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def prove(send: Send, model: str, *, timeout_s: float) -> ResumeProof:
        return CARRIED

    monkeypatch.setattr(prover_module, "prove", prove)
    proofs = ProofMemory(tmp_path)
    runner, _, controller, _ = build(engine_port, proofs)
    await runner.bring_up()
    await announced_level(controller, ResumeLevel.CARRIED)
    assert proofs.has(REVISION)
    assert not proofs.has("1" * 16) and not proofs.has("") and not proofs.has("../" + REVISION)


async def test_an_engine_that_cannot_be_tried_serves(engine_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def prove(send: Send, model: str, *, timeout_s: float) -> ResumeProof:
        raise RuntimeError("a defect")

    monkeypatch.setattr(prover_module, "prove", prove)
    runner, _, controller, _ = build(engine_port)
    await runner.bring_up()
    await announced_level(controller, ResumeLevel.NONE)
    runner.check()
    assert "a defect" in controller.heard[-1].state.resume_detail


async def test_a_rank_whose_agent_is_stopped_during_its_start_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call that started it is gone with its supervisor's patience, and continues on its node."""
    monkeypatch.setenv("LONGBOAT_RUN", str(tmp_path))
    begun, may_end = asyncio.Event(), asyncio.Event()
    command = RankCommand(argv=(sys.executable, "-c", "import time; time.sleep(600)"), env={})
    ranks: list[RankProcess] = []

    async def start_slowly(*_: object) -> RankProcess:
        begun.set()
        await may_end.wait()
        ranks.append(await start_rank(command, env_tags={}, log_path=tmp_path / "log", zygote=None))
        return ranks[0]

    agent = NodeAgent(MODEL, 0)
    monkeypatch.setattr(agent, "_start_rank", start_slowly)
    starting = asyncio.create_task(agent.start(PLAN))
    await begun.wait()
    await agent.stop(0.0)
    may_end.set()
    with pytest.raises(EngineError, match="was stopped while its engine started"):
        await starting
    await asyncio.wait_for(ranks[0].wait(), 30)
