"""Packing of all replicas onto nodes."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from planner_builders import node, nodes

from longboat.core.plan import GangShape, RankResources
from longboat.core.topology import Node
from longboat.planner.fleet.pack import GangDemand, pack
from longboat.planner.fleet.resources import fits


def demand(name: str, *, replicas: int = 1, pipeline: int = 1, cpus: float = 1, gpus: float = 0) -> GangDemand:
    rank = RankResources(num_cpus=cpus, num_gpus=gpus)
    shape = GangShape(tensor=1, pipeline=pipeline, num_nodes=pipeline, resources=rank)
    return GangDemand(model=name, shape=shape, replicas=replicas, labels={})


def test_large_replicas_are_placed_first() -> None:
    packing = pack([demand("small", replicas=2), demand("large", cpus=4)], [node(1, cpus=4), node(2, cpus=2)])
    assert packing.complete
    assert packing.placed == {"large": (("n1",),), "small": (("n2",), ("n2",))}


def test_nodes_of_a_gang_are_different() -> None:
    packing = pack([demand("a", pipeline=2)], [node(1, cpus=8)])
    assert packing.unplaced == {"a": 1}


def test_gangs_keep_pairs_of_nodes_open_for_each_other() -> None:
    machines = [node(1, cpus=1), node(2, cpus=1), node(3, cpus=2)]
    assert pack([demand("a", pipeline=2, replicas=2)], machines).complete


def test_large_replicas_leave_gangs_on_two_nodes_both_of_them() -> None:
    machines = [node(1, cpus=8), node(2, cpus=8)]
    packing = pack([demand("large", cpus=4, replicas=2), demand("wide", pipeline=2, replicas=2)], machines)
    assert packing.complete
    assert not any(first == second for first, second in packing.placed["wide"])


def test_a_thousand_nodes_are_looked_at_once_for_each_model() -> None:
    """Each node is compared with a need when its gangs are placed: not again for each further replica."""
    machines = nodes(1000, cpus=4)
    with patch("longboat.planner.fleet.pack.fits", wraps=fits) as compared:
        assert pack([demand("a", replicas=3992), demand("b", pipeline=2, cpus=4)], machines).complete
    assert compared.call_count < 20_000


def test_fractions_of_resources_add_up_exactly() -> None:
    assert pack([demand("a", cpus=0.1, replicas=10)], nodes(1, cpus=1)).complete
    assert pack([demand("a", cpus=0.1, replicas=11)], nodes(1, cpus=1)).unplaced == {"a": 1}


def test_a_part_of_a_card_is_never_spread_over_two() -> None:
    two_cards = [node(1, cpus=8, gpus=2)]
    assert pack([demand("a", gpus=0.25, replicas=8)], two_cards).complete
    assert pack([demand("a", gpus=0.75, replicas=2), demand("b", gpus=0.25, replicas=2)], two_cards).complete
    packing = pack([demand("a", gpus=0.75, replicas=2), demand("b", gpus=0.5)], two_cards)
    assert packing.unplaced == {"a": 0, "b": 1}


def test_whole_cards_are_taken_where_no_part_is() -> None:
    packing = pack([demand("part", gpus=0.1), demand("whole", gpus=1, replicas=2)], [node(1, cpus=8, gpus=2)])
    assert packing.unplaced == {"whole": 0, "part": 1}
    assert pack([demand("part", gpus=0.1), demand("whole", gpus=1)], [node(1, cpus=8, gpus=2)]).complete


def test_memory_counts_where_the_node_tells_it() -> None:
    shape = GangShape(tensor=1, pipeline=1, num_nodes=1, resources=RankResources(memory_bytes=3))
    demands = [GangDemand(model="a", shape=shape, replicas=2, labels={})]
    assert pack(demands, [node(1, memory_bytes=5)]).unplaced == {"a": 1}
    assert pack(demands, [node(1, memory_bytes=0)]).complete


SIZES = st.tuples(st.integers(0, 4), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2))


@given(st.lists(SIZES, max_size=4), st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), max_size=4))
def test_packing_never_takes_more_than_a_node_has(
    sizes: list[tuple[int, int, int, int]], machines: list[tuple[int, int]]
) -> None:
    demands = [
        demand(f"m{index}", replicas=replicas, pipeline=pipeline, cpus=cpus, gpus=gpus)
        for index, (replicas, pipeline, cpus, gpus) in enumerate(sizes)
    ]
    cluster: list[Node] = [node(index, cpus=cpus, gpus=gpus) for index, (cpus, gpus) in enumerate(machines)]
    packing = pack(demands, cluster)
    cpus_taken: Counter[str] = Counter()
    gpus_taken: Counter[str] = Counter()
    for wanted in demands:
        gangs = packing.placed[wanted.model]
        assert len(gangs) + packing.unplaced[wanted.model] == wanted.replicas
        for gang in gangs:
            assert len(set(gang)) == wanted.shape.num_nodes
            for node_id in gang:
                cpus_taken[node_id] += int(wanted.shape.resources.num_cpus)
                gpus_taken[node_id] += int(wanted.shape.resources.num_gpus)
    for machine in cluster:
        assert cpus_taken[machine.node_id] <= machine.num_cpus
        assert gpus_taken[machine.node_id] <= machine.num_gpus
