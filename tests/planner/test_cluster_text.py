"""Machines as people write them, and changes to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longboat.catalog.library import built_in_library
from longboat.cli.plan.plan_cluster_file import cluster_of_file
from longboat.core.errors import ClusterError, UserInputError
from longboat.core.topology import Node
from longboat.planner.machines.cluster import Cluster
from longboat.planner.machines.cluster_edits import Edits, edited
from longboat.planner.machines.cluster_live import cluster_of_nodes
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.spec.files.cluster_file import load_cluster_file

LIBRARY = built_in_library()
GIB = 1024**3


def cluster(text: str) -> Cluster:
    return parse_cluster(text, LIBRARY)


@pytest.mark.parametrize(
    ("text", "nodes", "cards", "network", "bus"),
    [
        ("4x(2xRTX4090), net=10GbE", 4, 8, "10GbE", "PCIe 4 x16"),
        ("1xA5000 + 1xA4000, net=1GbE", 2, 2, "1GbE", "PCIe 4 x16"),
        ("8xH100 80GB", 1, 8, "1GbE", "NVLink 4"),
        ("2x(2xH200)+4x(8xL4), net=100g", 6, 36, "100GbE", "NVLink 4"),
        ("2xDGX Spark, net=200GbE", 2, 2, "200GbE RoCE", "PCIe 4 x16"),
        ("4xEPYC9004, network=10gbe", 4, 4, "10GbE", "Shared memory"),
        ("7900XT", 1, 1, "1GbE", "PCIe 4 x16"),
        ("8 H100", 1, 8, "1GbE", "NVLink 4"),
        ("H100x8", 1, 8, "1GbE", "NVLink 4"),
        ("H100 x 8", 1, 8, "1GbE", "NVLink 4"),
        ("8 x H100", 1, 8, "1GbE", "NVLink 4"),
        ("2x(RTX4090x2)", 2, 4, "1GbE", "PCIe 4 x16"),
    ],
)
def test_text_names_nodes_cards_and_links(text: str, nodes: int, cards: int, network: str, bus: str) -> None:
    found = cluster(text)
    first = found.kinds[0]
    assert (found.num_nodes, found.num_cards, first.network.name, first.bus.name) == (nodes, cards, network, bus)


def test_size_after_a_name_is_the_memory_unless_it_is_the_usual_one() -> None:
    assert cluster("EPYC9004 512GB").kinds[0].cards[0].memory_bytes == 512 * GIB
    assert cluster("RTX4090 24GB") == cluster("RTX4090")


def test_system_and_engine_are_told() -> None:
    found = cluster("RTX 4090, os=wsl, engine=llamacpp")
    assert (found.kinds[0].os, found.engine) == ("wsl2", "llama.cpp")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("4x(2xRTX4091)", "RTX4091", "RTX 4090"),
        ("net=1g", "names no machine", "4x(2xRTX4090)"),
        ("2x(RTX4090", "not closed", "4x("),
        ("RTX4090)", "not opened", "4x("),
        ("2xH100, net=pcie4", "no network", "10GbE"),
        ("2xH100, nett=3", "nett", "net="),
        ("64xH100", "64 accelerators", "8x(8xH100 SXM)"),
        ("0xH100", "is 0", "between 1"),
        ("2xH100 +", "names no", "4x("),
        ("M3 Ultra, os=linux", "does not run under linux", "macos"),
        ("H100, engine=vlm", "vlm", "vLLM"),
        ("H100, os=beos", "beos", "macos"),
        ("H100, net=1g, net=10g", "twice", "one of them"),
        ("2x(2xH100), net=-5GbE", "'-5GbE' is below 0", "5GbE"),
        ("2x(2xH100, net=5GbE)", "inside the brackets", "), net=10GbE"),
    ],
)
def test_mistakes_are_named_with_what_is_near(text: str, message: str, hint: str) -> None:
    with pytest.raises(UserInputError) as refused:
        cluster(text)
    assert message in refused.value.message
    assert hint in refused.value.hint


@given(st.text(alphabet="24x×( )+,=:netosRTXH100GB90.", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        assert cluster(text).num_cards > 0
    except UserInputError as refused:
        assert refused.hint


@pytest.mark.parametrize(
    "text",
    ["4x(2xRTX4090), net=10GbE", "A5000 + A4000, net=1GbE", "2x(EPYC9004 512GB)", "2xH100, os=wsl2, engine=sglang"],
)
def test_a_title_can_be_read_again(text: str) -> None:
    assert cluster(cluster(text).title) == cluster(text)


@pytest.mark.parametrize(
    ("edits", "title"),
    [
        (Edits(add=("2x(2xRTX4090)",)), "RTX A5000 + RTX A4000 + 2 x (2 x RTX 4090), net=1GbE"),
        (Edits(remove=("A4000",)), "RTX A5000"),
        (Edits(remove=("1",)), "RTX A4000"),
        (Edits(remove=("1x(A5000)",)), "RTX A4000"),
        (Edits(swap=("1:A4000",)), "2 x (RTX A4000), net=1GbE"),
        (Edits(swap=("A4000:4090",)), "RTX A5000 + RTX 4090, net=1GbE"),
        (Edits(network="100GbE"), "RTX A5000 + RTX A4000, net=100GbE"),
    ],
)
def test_edits_change_what_they_name(edits: Edits, title: str) -> None:
    assert edited(cluster("A5000 + A4000"), edits, LIBRARY).title == title


@pytest.mark.parametrize(
    "edits",
    [Edits(remove=("2xA4000",)), Edits(remove=("3",)), Edits(swap=("4090:A4000",)), Edits(swap=("A4000",)),
     Edits(remove=("A5000", "A4000")), Edits(os="macos"), Edits(swap=("1:A4000 + A5000",)),
     Edits(swap=("A4000 + A5000:H100",)), Edits(swap=("1:40xA4000",))],
)  # fmt: skip
def test_edits_of_what_is_not_there_are_refused(edits: Edits) -> None:
    with pytest.raises(UserInputError) as refused:
        edited(cluster("A5000 + A4000"), edits, LIBRARY)
    assert refused.value.hint


FILE = """
net: 10GbE
engine: vllm
nodes:
  - {cards: 2xRTX4090, count: 3}
  - {cards: RTX A5000 + RTX A4000, net: 1GbE, os: wsl2}
  - 8xH100
"""


def test_file_gives_the_same_as_text() -> None:
    found = cluster_of_file(load_cluster_file(FILE, "cluster.yaml"), LIBRARY, "cluster.yaml")
    assert [kind.count for kind in found.kinds] == [3, 1, 1]
    assert [kind.network.name for kind in found.kinds] == ["10GbE", "1GbE", "10GbE"]
    assert (found.kinds[1].os, found.engine) == ("wsl2", "vLLM")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("nodes: [{cards: H100, cuont: 2}]", "nodes[0].cuont"),
        ("nodes: [{count: 2}]", "nodes[0].cards"),
        ("nodes: []", "nodes"),
        ("", "nodes"),
        ("nodes: [{cards: H100, count: two}]", "nodes[0].count"),
        ("nodes: [H100]\nnodes: [H200]", "nodes"),
    ],
)
def test_mistakes_in_a_file_have_their_path(text: str, where: str) -> None:
    with pytest.raises(UserInputError) as refused:
        load_cluster_file(text, "cluster.yaml")
    assert refused.value.problems[0].where == where
    assert refused.value.hint


def test_unknown_names_in_a_file_have_their_path() -> None:
    file = load_cluster_file("nodes: [H100, {cards: RTX 4091}, {cards: H100, net: 7GbE}]", "cluster.yaml")
    with pytest.raises(UserInputError) as refused:
        cluster_of_file(file, LIBRARY, "cluster.yaml")
    assert [problem.where for problem in refused.value.problems] == ["nodes[1]", "nodes[2]"]


def test_running_nodes_are_known_by_their_labels() -> None:
    nodes = [
        Node(node_id="a", address="10.0.0.1", num_gpus=2, labels={"longboat.accelerator": "RTX 4090"}),
        Node(node_id="b", address="10.0.0.2", num_cpus=4, memory_bytes=8 * GIB),
        Node(node_id="c", address="10.0.0.3", num_gpus=1, alive=False),
    ]
    found = cluster_of_nodes(nodes, LIBRARY)
    assert found.kinds[0].title == "2 x RTX 4090"
    assert found.kinds[1].cards[0].memory_bytes == 8 * GIB


def test_a_running_node_whose_cards_nobody_named_is_refused() -> None:
    with pytest.raises(ClusterError, match="no label") as refused:
        cluster_of_nodes([Node(node_id="a", address="10.0.0.1", num_gpus=2)], LIBRARY)
    assert "longboat.accelerator" in refused.value.hint


@pytest.mark.parametrize("text", ["1000000xH100", "-1xH100", "-2x(8xH100)", "99999x(8xH100)"])
def test_counts_out_of_bounds_are_refused_as_counts(text: str) -> None:
    with pytest.raises(UserInputError) as refused:
        parse_cluster(text, built_in_library())
    assert "of them" in refused.value.message
    assert "between 1 and" in str(refused.value.hint)


def test_networks_of_400_gigabits_are_known() -> None:
    assert parse_cluster("2x(8xH200), net=400GbE", built_in_library()).kinds[0].network.bandwidth_gb_s == 50.0


def test_a_label_with_several_kinds_of_accelerators_is_refused() -> None:
    labels = {"longboat.accelerator": "RTX4090 + A5000"}
    with pytest.raises(UserInputError, match="2 kinds of accelerators"):
        cluster_of_nodes([Node(node_id="a", address="10.0.0.1", num_gpus=2, labels=labels)], LIBRARY)
