"""What a second ``up`` would change."""

from __future__ import annotations

import pytest

from longboat.core.errors import UserInputError
from longboat.spec.diff import diff
from longboat.spec.files.load import load_fleet
from longboat.spec.types.fleet import Fleet


def fleet(text: str) -> Fleet:
    return load_fleet(text, "fleet.yaml")


def test_diff_of_an_unchanged_fleet_is_empty() -> None:
    assert diff(fleet("builtin:tiny"), fleet("models: [{name: tiny, source: builtin:tiny, replicas: 1}]")).empty


def test_diff_names_models_that_come_and_go() -> None:
    change = diff(fleet("models: [builtin:tiny, builtin:a]"), fleet("models: [builtin:b, builtin:tiny]"))
    assert (change.added, change.removed, change.changed) == (("b",), ("a",), ())
    assert change.lines() == ["+ b", "- a"]


def test_diff_of_replicas_alone_leaves_running_replicas_be() -> None:
    change = diff(fleet("builtin:tiny"), fleet("models: [{source: builtin:tiny, replicas: 3}]"))
    (model,) = change.changed
    assert model.only_replicas
    assert change.lines() == ["~ tiny.replicas: 1 -> 3"]


def test_diff_of_the_load_leaves_running_replicas_be() -> None:
    (model,) = diff(fleet("builtin:tiny"), fleet("models: [{source: builtin:tiny, load: {users: 64}}]")).changed
    assert model.only_replicas
    assert [str(change) for change in model.changes] == ["load.users: 8 -> 64"]


def test_diff_lists_every_changed_value_by_its_path() -> None:
    new = "models: [{source: builtin:tiny, replicas: 2, split: {pipeline: 2}, placement: {labels: {zone: a}}}]"
    (model,) = diff(fleet("builtin:tiny"), fleet(new)).changed
    assert not model.only_replicas
    assert [str(change) for change in model.changes] == [
        "replicas: 1 -> 2",
        "split.pipeline: 1 -> 2",
        "placement.labels.zone: null -> a",
    ]


def test_diff_shows_changes_of_the_gateway() -> None:
    change = diff(fleet("builtin:tiny"), fleet("{models: [builtin:tiny], gateway: {port: 9000}}"))
    assert change.lines() == ["~ gateway.port: 8000 -> 9000"]
    assert not change.empty


def test_diff_of_another_fleet_is_refused() -> None:
    with pytest.raises(UserInputError) as caught:
        diff(fleet("{name: one, models: [builtin:tiny]}"), fleet("{name: two, models: [builtin:tiny]}"))
    assert "'one'" in caught.value.message
    assert "longboat down" in caught.value.hint
