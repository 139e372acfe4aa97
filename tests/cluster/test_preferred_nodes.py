"""Replicas go to nodes that have their weights, where these have room; otherwise anywhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from longboat.cli.fleet.first_places import without_each_other
from longboat.cluster.counts.preferred_nodes import (
    MAX_HELD_NODES,
    NodeFacts,
    Preference,
    all_are_placed,
    preference,
    without_replicas,
)
from longboat.cluster.fleet.placing import Placing
from longboat.cluster.protocol.names import model_app_name
from longboat.core.states import Phase, RankState, ReplicaState
from longboat.core.topology import Node

SOURCE = "s3://models/m"


def arguments(nodes: int = 1, *, source: str = SOURCE, **changed: Any) -> dict[str, Any]:
    engine = {"kind": "vllm"}
    args = {"model": {"source": source, "engine": engine}, "bundles": [{"GPU": 2.0}] * nodes, "labels": {}}
    return {**args, **changed}


def node(name: str, gpus: float = 4.0, *sources: str, warm: bool = False, **labels: str) -> NodeFacts:
    zygotes = ("vllm 0.32.0",) if warm else ()
    left = {"GPU": gpus, "CPU": 8.0}
    return NodeFacts(
        node_id=f"id-{name}", name=name, left=left, labels=labels, weights=frozenset(sources), zygotes=zygotes
    )


def test_the_node_with_the_weights_is_preferred_and_the_room_of_others_is_held() -> None:
    found = preference(arguments(), [node("a"), node("b", 4.0, SOURCE), node("c", 9.0)], 1)
    assert (found.preferred, found.num_gangs) == (("id-b",), 1)
    assert found.held == {"id-a": 2, "id-c": 4}
    assert found.reason == "b has its weights"


def test_a_warm_engine_decides_among_nodes_that_have_the_weights() -> None:
    nodes = [node("a", 4.0, SOURCE), node("b", 4.0, SOURCE, warm=True), node("c", warm=True)]
    assert preference(arguments(), nodes, 1).preferred == ("id-b",)
    assert preference(arguments(), nodes, 1).reason == "b has its weights"
    folder = preference(arguments(source="/models/m"), nodes, 1)
    assert (folder.preferred, folder.reason) == (("id-b", "id-c"), "b and c have its engine warm")


@pytest.mark.parametrize(
    "nodes",
    [
        [node("a"), node("b")],
        [node("a", 4.0, SOURCE), node("b", 4.0, SOURCE)],
        [node("a"), node("b", 1.0, SOURCE)],
        [node("a", 1.0), node("b", 4.0, SOURCE)],
        [],
    ],
    ids=["nobody has them", "all have them", "no room where they are", "room only there", "no node"],
)
def test_nothing_is_held_where_no_node_with_room_is_better(nodes: list[NodeFacts]) -> None:
    assert preference(arguments(), nodes, 1) == Preference()


def test_replicas_beyond_the_room_of_the_preferred_nodes_go_anywhere() -> None:
    found = preference(arguments(), [node("a", 8.0), node("b", 4.0, SOURCE)], 5)
    assert found.num_gangs == 2
    assert found.reason == "b has its weights, and room for 2 of 5 replicas"


def test_a_gang_over_two_nodes_needs_two_that_have_the_weights() -> None:
    two = [node("a", 2.0, SOURCE), node("b", 8.0, SOURCE), node("c", 8.0)]
    assert preference(arguments(nodes=2), two, 3).num_gangs == 1, "a has room for one part of one gang"
    assert preference(arguments(nodes=2), two[1:], 3) == Preference()


def test_labels_are_kept_and_stages_are_left_alone() -> None:
    nodes = [node("a", 4.0, zone="1"), node("b", 4.0, SOURCE, zone="2"), node("c", 4.0, SOURCE, zone="1")]
    assert preference(arguments(labels={"zone": "1"}), nodes, 1).preferred == ("id-c",)
    assert preference(arguments(stages=[{"zone": "1"}]), nodes, 1) == Preference()


def test_a_large_fleet_is_not_held() -> None:
    others = [node(str(number)) for number in range(MAX_HELD_NODES + 1)]
    found = preference(arguments(), [node("b", 4.0, SOURCE), *others], 1)
    assert (found.num_gangs, dict(found.held)) == (0, {})
    assert "too many to keep free" in found.reason


def test_what_replicas_take_is_not_left() -> None:
    rank = RankState(node_rank=0, node_id="n", address="")
    runs = ReplicaState(
        model="m", replica="r", generation=1, phase=Phase.READY, ranks=(rank, replace(rank, node_rank=1))
    )
    gone = replace(runs, replica="g", phase=Phase.GONE)
    unknown = replace(runs, model="other", replica="o")
    nodes = [Node(node_id="n", address="", num_cpus=8.0, num_gpus=4.0)]
    left = without_replicas(nodes, [runs, gone, unknown], {"m": [{"GPU": 1.0, "CPU": 2.0}]})
    assert left == {"n": {"CPU": 4.0, "GPU": 2.0, "memory": 0.0}}


def test_a_replica_without_ranks_takes_room_that_is_not_known() -> None:
    fetches = ReplicaState(model="m", replica="r", generation=1, phase=Phase.FETCHING)
    assert not all_are_placed([fetches])
    assert all_are_placed([replace(fetches, phase=Phase.FAILED)])
    assert all_are_placed([replace(fetches, ranks=(RankState(node_rank=0, node_id="n", address=""),))])


def test_models_that_start_together_hold_nothing_of_nodes_that_another_prefers() -> None:
    one = Preference(num_gangs=1, held={"b": 1, "c": 1}, preferred=("a",), reason="a has its weights")
    two = Preference(num_gangs=1, held={"a": 1, "c": 1}, preferred=("b",), reason="b has its weights")
    assert {name: dict(found.held) for name, found in without_each_other({"x": one, "y": two}).items()} == {
        "x": {"c": 1},
        "y": {"c": 1},
    }


class Rooms:
    """Room that is held, and released when the replicas are placed."""

    def __init__(self) -> None:
        self.held: list[dict[str, int]] = []
        self.released: list[bool] = []
        self.fails = False

    def hold(self, held: Mapping[str, int], bundle: Mapping[str, float]) -> Rooms:
        if self.fails:
            raise RuntimeError("Ray does not answer")
        self.held.append(dict(held))
        return self

    def release_when(self, is_placed: Callable[[], bool]) -> None:
        self.released.append(is_placed())


def serve(*replicas: dict[str, str]) -> dict[str, dict[str, Any]]:
    """What Serve says of the model ``m``."""
    app = {"deployed_app_config": {"args": arguments()}, "deployments": {"d": {"replicas": list(replicas)}}}
    return {model_app_name("m"): app}


async def steered(rooms: Rooms, more: int, *after: dict[str, str]) -> str:
    placing = Placing(lambda _: (node("a"), node("b", 4.0, SOURCE)), rooms.hold, lambda *_: False)
    placing.take(serve())
    states = iter([serve(RUNS)])
    reason = await placing.steer("m", more, lambda: next(states, serve(RUNS, *after)))
    async with asyncio.timeout(30):
        await asyncio.gather(*placing._releases)
    return reason


RUNS = {"node_id": "id-b", "state": "RUNNING"}


async def test_room_is_held_until_the_replicas_have_places() -> None:
    rooms = Rooms()
    assert await steered(rooms, 1, RUNS) == "b has its weights"
    assert rooms.held == [{"id-a": 2}]
    assert await steered(rooms, 1, {"node_id": "", "state": "PENDING_ALLOCATION"}) == "b has its weights"
    assert rooms.released == [True, False]


async def test_replicas_go_anywhere_where_no_room_can_be_held() -> None:
    rooms = Rooms()
    rooms.fails = True
    assert await steered(rooms, 1) == ""
    assert await steered(Rooms(), -1) == ""


async def test_no_other_model_is_steered_while_room_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models could hold each other's nodes, and neither would find a place."""
    placed, rooms = threading.Event(), Rooms()
    placing = Placing(lambda _: (node("a"), node("b", 4.0, SOURCE)), rooms.hold, lambda *_: False)
    placing.take(serve())
    monkeypatch.setattr(rooms, "release_when", lambda _: placed.wait(30))
    assert await placing.steer("m", 1, serve) == "b has its weights"
    assert await placing.steer("m", 1, serve) == ""
    placed.set()
    async with asyncio.timeout(30):
        await asyncio.gather(*placing._releases)
    assert rooms.held == [{"id-a": 2}]
    assert await placing.steer("m", 1, serve) == "b has its weights"
    await asyncio.gather(*placing._releases)
