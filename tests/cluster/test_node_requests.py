"""Ray's autoscaler is asked for nodes while replicas lack room, once for each change, and not afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from cluster.test_counts import ELASTIC, NOW_S, Looks, replica
from longboat.cluster.fleet.node_requests import NodeRequests, needed_bundles
from longboat.cluster.ray.autoscaler import is_node_type

ARGUMENTS = {
    "a": {"bundles": [{"GPU": 1.0}, {"GPU": 1.0}], "labels": {"zone": "1"}},
    "b": {"bundles": [{"CPU": 2.0}], "labels": {}},
    "s": {"bundles": [{"GPU": 1.0}, {"GPU": 2.0}], "labels": {}, "stages": [{"card": "x"}, {"card": "y"}]},
}


class Autoscaler:
    """Hears requests, if it runs."""

    def __init__(self, *, runs: bool = True) -> None:
        self.runs, self.heard = runs, list[int]()

    def ask(self, bundles: Sequence[Mapping[str, float]], labels: Sequence[Mapping[str, str]]) -> bool:
        assert len(bundles) == len(labels)
        self.heard.append(len(bundles))
        return self.runs


def test_all_replicas_are_asked_for_with_their_labels() -> None:
    bundles, labels = needed_bundles({"b": 1, "a": 2, "unknown": 3}, ARGUMENTS)
    assert bundles == [{"GPU": 1.0}] * 4 + [{"CPU": 2.0}]
    assert labels == [{"zone": "1"}] * 4 + [{}]
    assert needed_bundles({"s": 1}, ARGUMENTS)[1] == [{"card": "x"}, {"card": "y"}]


async def test_each_change_is_asked_once_and_the_end_of_the_need_too() -> None:
    autoscaler = Autoscaler()
    requests = NodeRequests(autoscaler.ask)
    for wanted in ({"a": 2}, {"a": 2}, {"a": 3}, {}, {}):
        await requests.follow(wanted, ARGUMENTS)
        assert requests.is_heard == bool(wanted)
    assert autoscaler.heard == [4, 6, 0]


async def test_what_an_earlier_controller_asked_for_is_withdrawn() -> None:
    autoscaler = Autoscaler()
    await NodeRequests(autoscaler.ask).follow({}, ARGUMENTS)
    assert autoscaler.heard == [0]


async def test_an_autoscaler_that_runs_later_is_asked_then() -> None:
    autoscaler = Autoscaler(runs=False)
    requests = NodeRequests(autoscaler.ask)
    await requests.follow({"a": 2}, ARGUMENTS)
    assert not requests.is_heard
    autoscaler.runs = True
    await requests.follow({"a": 2}, ARGUMENTS)
    assert requests.is_heard


@pytest.mark.parametrize(
    ("name", "is_type"),
    [("ray.head.default", True), ("gpu-group", True), ("node_" + "0f" * 28, False), ("node_pool_a", True), ("", False)],
)
def test_a_type_of_a_configuration_is_told_from_a_nodes_own_name(name: str, is_type: bool) -> None:
    assert is_node_type(name) is is_type


def test_the_keeper_says_what_is_short_and_that_it_was_asked_for() -> None:
    looks = Looks(replace(ELASTIC, min_replicas=3))
    looks.keeper.found({"e": 3}, {"e": [{"GPU": 1.0}]})
    for _ in range(20):
        looks.now_s += 1.0
        looks.keeper.look([replica("r")], looks.now_s, partial=False, nodes=[{"GPU": 1.0}])
        looks.keeper.has_asked = bool(looks.keeper.short)
    assert looks.keeper.short == {"e": 3}
    assert looks.keeper.book.counts["e"].problem.endswith("; Ray's autoscaler was asked for nodes")
    looks.now_s = NOW_S + 60.0
    looks.keeper.look([replica(name) for name in "rst"], looks.now_s, partial=False, nodes=[{"GPU": 4.0}])
    assert looks.keeper.short == {}
