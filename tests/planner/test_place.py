"""The shape of one replica's gang on given nodes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planner_builders import TINY, model, node, nodes

from longboat.core.errors import Problem
from longboat.core.plan import GangShape
from longboat.core.topology import Node
from longboat.core.wanted import WantedModel
from longboat.planner.fleet.place import NoShape, bundles, shape_gang, strategy
from longboat.planner.fleet.resources import amount_of_node, fits, shape_amount


def shape(spec: WantedModel, machines: Sequence[Node], platform: str = "cpu") -> GangShape:
    found = shape_gang(spec, TINY, machines, platform)
    assert isinstance(found, GangShape), found
    return found


def refusal(spec: WantedModel, machines: Sequence[Node], platform: str = "cpu") -> Problem:
    found = shape_gang(spec, TINY, machines, platform)
    assert isinstance(found, NoShape), found
    (problem,) = found.problems
    return problem


def test_one_rank_takes_one_node() -> None:
    found = shape(model(), nodes(3))
    assert (found.num_nodes, found.ranks_per_node) == (1, 1)
    assert (bundles(found), strategy(found)) == ([{"CPU": 1.0}], "STRICT_PACK")


def test_pipeline_takes_one_node_for_each_stage() -> None:
    found = shape(model(split={"pipeline": 2}), nodes(3))
    assert found.num_nodes == 2
    assert found.reason == "one pipeline stage on each of 2 nodes"
    assert (bundles(found), strategy(found)) == ([{"CPU": 1.0}, {"CPU": 1.0}], "STRICT_SPREAD")


@pytest.mark.parametrize(("machines", "expected"), [(1, 1), (2, 2), (3, 2), (4, 4), (5, 4)])
def test_pipeline_on_fewer_nodes_is_packed_evenly(machines: int, expected: int) -> None:
    found = shape(model(split={"pipeline": 4}), nodes(machines, cpus=4))
    assert found.num_nodes == expected
    assert len(bundles(found)) == expected


def test_each_stage_of_llama_cpp_takes_a_node_of_its_own() -> None:
    spec = model(engine="llama.cpp", split={"pipeline": 2})
    assert shape(spec, nodes(2)).num_nodes == 2
    problem = refusal(spec, nodes(1, cpus=8))
    assert problem.where == "split.pipeline"
    assert problem.what == (
        "llama.cpp computes each stage on a node of its own: 2 nodes with 1 CPU each are needed, 1 of 1 has that"
    )
    assert problem.hint == "write pipeline: 1, or add nodes"
    asked = refusal(model(engine="llama.cpp", split={"pipeline": 2}, placement={"nodes": 1}), nodes(2))
    assert (asked.where, asked.hint) == ("placement.nodes", "write nodes: 2, or leave it out")


def test_tensor_stays_inside_a_node() -> None:
    found = shape(model(split={"tensor": 2}), nodes(2, cpus=2))
    assert found.num_nodes == 1
    assert "network" not in found.reason


def test_tensor_reaches_over_nodes_only_where_no_node_holds_it_and_warns() -> None:
    found = shape(model(split={"tensor": 2}), nodes(2, cpus=1))
    assert found.num_nodes == 2
    assert "the largest takes 1" in found.reason
    assert "slow" in found.reason


def test_tensor_reaches_over_nodes_on_request_and_warns() -> None:
    found = shape(model(split={"tensor": 2}, placement={"nodes": 2}), nodes(2, cpus=2))
    assert found.num_nodes == 2
    assert "placement.nodes" in found.reason
    assert "slow" in found.reason


def test_gpu_platform_gives_each_rank_a_gpu() -> None:
    found = shape(model(split={"tensor": 4, "pipeline": 2}), nodes(2, cpus=16, gpus=4), "cuda")
    assert found.num_nodes == 2
    assert bundles(found) == [{"CPU": 4.0, "GPU": 4.0}] * 2


def test_fake_engine_takes_no_gpu_on_a_gpu_platform() -> None:
    assert shape(model(engine="fake"), nodes(1), "cuda").resources.num_gpus == 0


def test_gpus_in_the_file_win_over_the_platform() -> None:
    assert shape(model(resources={"gpus": 0}), nodes(1), "cuda").resources.num_gpus == 0
    assert shape(model(resources={"gpus": 0.5}), nodes(1, gpus=1), "cpu").resources.num_gpus == 0.5


def test_memory_is_reserved_for_each_rank() -> None:
    spec = model(split={"tensor": 2}, resources={"memory": "1GiB"})
    found = shape(spec, nodes(1, memory_bytes=2 << 30))
    assert bundles(found) == [{"CPU": 2.0, "memory": float(2 << 30)}]
    assert refusal(model(resources={"memory": "3GiB"}), nodes(1, memory_bytes=2 << 30)).where == "resources.memory"


def test_only_nodes_with_the_labels_count() -> None:
    machines = [node(1, zone="a"), node(2, zone="b"), node(3, zone="b")]
    spec = model(split={"pipeline": 2}, placement={"labels": {"zone": "b"}})
    assert shape(spec, machines).num_nodes == 2
    assert shape(spec, machines[:2]).num_nodes == 1


def test_dead_nodes_do_not_count() -> None:
    dead = Node(node_id="d", address="10.0.0.9", num_cpus=64, alive=False)
    assert "no node that is alive" in refusal(model(), [dead]).what


@pytest.mark.parametrize(
    ("labels", "hint"),
    [({"zone": "c"}, "zone is one of: a, b"), ({"rack": "1"}, "labels that exist: zone=a, zone=b")],
)
def test_unknown_label_lists_those_that_exist(labels: dict[str, str], hint: str) -> None:
    problem = refusal(model(placement={"labels": labels}), [node(1, zone="a"), node(2, zone="b")])
    assert problem.where == f"placement.labels.{next(iter(labels))}"
    assert "none of 2 nodes" in problem.what
    assert hint in problem.hint


def test_labels_that_no_node_carries_together_are_refused() -> None:
    machines = [node(1, zone="a", disk="slow"), node(2, zone="b", disk="fast")]
    problem = refusal(model(placement={"labels": {"zone": "a", "disk": "fast"}}), machines)
    assert problem.where == "placement.labels"
    assert "zone=a, disk=fast" in problem.what


def test_more_nodes_than_exist_are_refused() -> None:
    problem = refusal(model(split={"pipeline": 4}, placement={"nodes": 4}), nodes(3, cpus=4))
    assert problem.where == "placement.nodes"
    assert problem.what == "4 nodes are asked for, 3 nodes can be chosen"
    assert problem.hint == "write nodes: 2"


def test_nodes_that_do_not_divide_the_ranks_are_refused() -> None:
    problem = refusal(model(split={"pipeline": 4}, placement={"nodes": 3}), nodes(3))
    assert (problem.where, problem.hint) == ("placement.nodes", "write nodes: 2")


def test_more_gpus_than_exist_are_refused_with_both_numbers() -> None:
    problem = refusal(model(split={"tensor": 8}), nodes(2, cpus=16, gpus=2), "cuda")
    assert problem.where == "split"
    assert "8 GPUs (8 worker ranks)" in problem.what
    assert "2 nodes that can be chosen: 32 CPUs, 4 GPUs" in problem.what
    assert "at most 4 worker ranks" in problem.hint


def test_a_gpu_where_none_exists_is_refused() -> None:
    problem = refusal(model(), nodes(1), "cuda")
    assert problem.where == "resources.gpus"
    assert "no node has room for one rank" in problem.hint


def test_more_cpus_than_a_node_has_are_refused() -> None:
    assert refusal(model(resources={"cpus": 3}), nodes(4, cpus=2)).where == "resources.cpus"


def test_split_that_the_model_cannot_do_is_refused_before_nodes_are_looked_at() -> None:
    assert refusal(model(split={"tensor": 3}), []).where == "split.tensor"


def test_model_with_unknown_facts_is_placed() -> None:
    assert isinstance(shape_gang(model(split={"tensor": 3}), None, nodes(1, cpus=3), "cpu"), GangShape)


MACHINES = st.lists(
    st.builds(
        lambda number, cpus, gpus, zone: node(number, cpus=cpus, gpus=gpus, zone=zone),
        st.integers(1, 250),
        st.integers(0, 16),
        st.integers(0, 8),
        st.sampled_from("ab"),
    ),
    max_size=6,
    unique_by=lambda machine: machine.node_id,
)


@given(
    MACHINES,
    st.integers(1, 16),
    st.integers(1, 16),
    st.none() | st.integers(1, 6),
    st.sampled_from(["cpu", "cuda"]),
    st.sampled_from([{}, {"zone": "a"}]),
)
def test_shape_always_finds_room_on_enough_matching_nodes(
    machines: list[Node], tensor: int, pipeline: int, asked: int | None, platform: str, labels: dict[str, str]
) -> None:
    spec = model(split={"tensor": tensor, "pipeline": pipeline}, placement={"nodes": asked, "labels": labels})
    found = shape_gang(spec, None, machines, platform)
    if isinstance(found, NoShape):
        assert all(problem.what and problem.hint for problem in found.problems)
        return
    assert found.ranks_per_node * found.num_nodes == tensor * pipeline
    assert asked in (None, found.num_nodes)
    able = [
        machine
        for machine in machines
        if labels.items() <= machine.labels.items() and fits(shape_amount(found), amount_of_node(machine))
    ]
    assert len(able) >= found.num_nodes
    assert ("slow" in found.reason) == (found.ranks_per_node % tensor != 0)
