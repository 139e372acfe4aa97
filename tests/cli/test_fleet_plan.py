"""What a second `up` keeps of what was decided, and what it decides anew."""

from __future__ import annotations

from typing import Any

import pytest

from longboat.cli.fleet.fleet_plan import same_wishes, up_options
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet

AUTO = "models: [{source: 'builtin:tiny', split: auto, replicas: auto%s}]"
DECIDED = "models: [{source: 'builtin:tiny', split: {tensor: 2}, replicas: 3}]"


def told(asked: str = AUTO % "", decided: str = DECIDED, **more: Any) -> dict[str, Any]:
    return {
        "text": dump_fleet(load_fleet(decided, "x")),
        "planned": {"asked": dump_fleet(load_fleet(asked, "x"))},
        **more,
    }


def kept(text: str, values: dict[str, Any], *, replan: bool = False) -> dict[str, tuple[object, object]]:
    """Model → replicas, tensor."""
    options = up_options(load_fleet(text, "x"), values, replan=replan, force=False)
    return {name: (m.replicas, m.split if m.split == "auto" else m.ranks.tensor) for name, m in options.kept.items()}


def test_same_file_keeps_its_numbers() -> None:
    assert kept(AUTO % "", told()) == {"tiny": (3, 2)}
    assert same_wishes(load_fleet(AUTO % "", "x"), told())


def test_first_up_keeps_nothing() -> None:
    assert kept(AUTO % "", {}) == {}
    assert not same_wishes(load_fleet(AUTO % "", "x"), {})


def test_replan_keeps_nothing() -> None:
    assert kept(AUTO % "", told(), replan=True) == {}


@pytest.mark.parametrize("change", [", load: {users: 99}", ", context: 512", ", resources: {cpus: 2}"])
def test_what_the_plan_depends_on_is_decided_anew(change: str) -> None:
    assert kept(AUTO % change, told()) == {}


def test_update_rules_are_no_reason_to_decide_anew() -> None:
    assert kept(AUTO % ", update: {drain_s: 5}", told()) == {"tiny": (3, 2)}


def test_other_replicas_keep_the_split() -> None:
    assert kept("models: [{source: 'builtin:tiny', split: auto, replicas: 5}]", told()) == {"tiny": (5, 2)}


def test_replicas_that_were_a_number_are_decided_with_the_split_that_runs() -> None:
    before = told(asked="models: [{source: 'builtin:tiny', split: auto, replicas: 3}]")
    assert kept(AUTO % "", before) == {"tiny": ("auto", 2)}


def test_part_that_was_decided_is_kept() -> None:
    part = "models: [{source: 'builtin:tiny', split: {tensor: auto, pipeline: 1}, replicas: 3}]"
    assert kept(part, told(asked=part)) == {"tiny": (3, 2)}
    assert kept(part.replace("pipeline: 1", "pipeline: 2"), told(asked=part)) == {}


def test_numbers_that_become_auto_are_a_new_wish() -> None:
    assert kept(AUTO % "", told(asked=DECIDED)) == {}
    assert not same_wishes(load_fleet(AUTO % "", "x"), told(asked=DECIDED))


def test_an_update_that_was_taken_back_is_decided_anew() -> None:
    assert kept(AUTO % "", told(taken_back={"tiny": ["d", "why"]})) == {}


def test_a_fleet_of_an_older_version_has_only_numbers() -> None:
    values = {"text": told()["text"]}
    assert kept(AUTO % "", values) == {}
    assert same_wishes(load_fleet(DECIDED, "x"), values)


def test_stages_that_are_bound_to_nodes_are_kept_with_their_layers() -> None:
    decided = """models: [{source: 'builtin:tiny', replicas: 1, split: {pipeline: 2, layers: [3, 1]},
        placement: {nodes: 2, stages: [{host: b}, {host: a}]}}]"""
    found = up_options(load_fleet(AUTO % "", "x"), told(decided=decided), replan=False, force=False).kept["tiny"]
    assert found.ranks.layers == (3, 1)
    assert found.placement.stages == ({"host": "b"}, {"host": "a"})
    assert found.is_decided
