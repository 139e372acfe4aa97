"""The controller's loops: they end with the fleet, and begin again where the fleet comes up again."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from longboat.cluster.fleet import controller
from longboat.cluster.fleet.controller import FleetController
from longboat.cluster.fleet.deployed import ENDING
from longboat.cluster.fleet.rollouts import Step, StepKind
from longboat.cluster.fleet.serve_config import controller_document
from longboat.cluster.protocol.messages import Announcement, GatewayReport, NodeOrder, NodeReport
from longboat.core.states import Phase, ReplicaState
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet

FLEET = load_fleet("models: [{source: 'builtin:tiny'}]", "x")


class Daemon:
    """A node's daemon that notes its orders."""

    def __init__(self) -> None:
        self.ordered = asyncio.Event()
        self.order = SimpleNamespace(remote=self._order)
        self.wakes = SimpleNamespace(remote=asyncio.Event().wait)

    async def _order(self, order: NodeOrder) -> NodeReport:
        self.ordered.set()
        gateway = GatewayReport(node_id="n", address="", hostname="", url="", pid=None, table_version=0)
        return NodeReport(gateway=gateway)


async def nothing(*_: object) -> Any:
    return True


def deaf(*_: object) -> bool:
    return False


async def test_a_fleet_that_comes_up_after_a_down_that_was_cut_orders_its_nodes_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def alive() -> list[Mapping[str, Any]]:
        return [{"NodeID": "n", "Alive": True, "NodeManagerAddress": "n", "Resources": {}, "Labels": {}}]

    monkeypatch.setattr(controller, "_alive_nodes", alive)
    daemon, document = Daemon(), controller_document(FLEET, dump_fleet(FLEET))
    made: Any = FleetController.__new__(FleetController)
    await made.__init__(lambda _: daemon, nothing, nothing, deaf, deaf)
    await made.reconfigure(document)
    await asyncio.wait_for(daemon.ordered.wait(), 20)
    assert await made.end_nodes() == 1
    daemon.ordered.clear()
    await made.reconfigure({**document, ENDING: True})  # Serve may pass this on late
    assert all(loop.done() for loop in made._loops)
    await made.reconfigure(document)
    await asyncio.wait_for(daemon.ordered.wait(), 20)
    await made.end_nodes()


@pytest.mark.parametrize(("ready_s", "start_s"), [(77, controller.HUNG_START_S), (9000, 9000)])
async def test_a_replica_hears_how_long_its_start_may_last(
    monkeypatch: pytest.MonkeyPatch, ready_s: int, start_s: float
) -> None:
    monkeypatch.setattr(controller, "_alive_nodes", list)
    fleet = load_fleet(f"models: [{{source: 'builtin:tiny', update: {{ready_s: {ready_s}}}}}]", "x")
    made: Any = FleetController.__new__(FleetController)
    await made.__init__(lambda _: Daemon(), nothing, nothing, deaf, deaf)
    await made.reconfigure(controller_document(fleet, dump_fleet(fleet)))
    state = ReplicaState(model=fleet.models[0].name, replica="r", generation=1, phase=Phase.LOADING, url="")
    verdict = await made.announce(Announcement(state=state, slot=0, capacity=None, api_key="k"))
    assert verdict.start_s == start_s
    await made.end_nodes()


async def test_an_update_that_cannot_be_followed_holds_up_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [Step(kind=StepKind.DONE, model=model, digest="d") for model in ("broken", "whole")]
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def carry_out(step: Step, _dashboard: str) -> None:
        if step.model == "broken":
            raise KeyError("its application is gone")
        loop.call_soon_threadsafe(done.set)

    monkeypatch.setattr(controller, "_alive_nodes", list)
    monkeypatch.setattr(controller, "ROLL_EVERY_S", 0.01)
    monkeypatch.setattr(controller, "_carry_out", carry_out)
    made: Any = FleetController.__new__(FleetController)
    await made.__init__(lambda _: Daemon(), nothing, nothing, deaf, deaf)
    monkeypatch.setattr(made._rollouts, "steps", lambda *_: steps)
    await made.reconfigure({**controller_document(FLEET, dump_fleet(FLEET)), "dashboard": "http://127.0.0.1:9"})
    await asyncio.wait_for(done.wait(), 20)
    await made.end_nodes()
