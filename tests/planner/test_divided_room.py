"""Layers of unlike stages leave room for what only some of them hold: a draft model, and adapters of each layer."""

from __future__ import annotations

import pytest

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.core.plan import AdapterRoom, EngineMemory
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.search.demand import Demand
from longboat.planner.search.search import search

LIBRARY = built_in_library()
MODEL = shape_of_entry(LIBRARY.models["Qwen3-14B"])


def with_draft(name: str, users: int) -> Demand:
    return Demand(users=users, draft=shape_of_entry(LIBRARY.models[name]))


def with_adapters(slots: int, users: int) -> Demand:
    return Demand(users=users, settings=EngineMemory(adapters=AdapterRoom(slots=slots, held=slots, rank=64)))


def pipelines(on: str, demand: Demand) -> dict[str, tuple[int, ...]]:
    """Return the layers of each stage of the pipelines that fit, by the cards in their order."""
    found = search([MODEL], parse_cluster(on, LIBRARY), demand, "vllm", built_in_calibration())
    groups = [group for plan in found.plans for group in plan.groups if len(group.fit.split.stages) == 2]
    return {" ".join(card.name for card in group.cards): group.fit.split.stages for group in groups}


@pytest.mark.parametrize("users", [1, 8, 64])
@pytest.mark.parametrize("draft", ["Qwen3-1.7B", "Qwen3-4B"])
def test_the_last_stage_has_room_for_the_draft_model(draft: str, users: int) -> None:
    (stages,) = pipelines("2x(1xRTX4090)", with_draft(draft, users)).values()
    assert stages[0] >= stages[1]


@pytest.mark.parametrize("users", [1, 64])
def test_a_draft_model_fits_behind_a_smaller_card_and_behind_a_larger_one(users: int) -> None:
    found = pipelines("A5000 + A4000, net=10GbE", with_draft("Qwen3-1.7B", users))
    assert set(found) == {"RTX A5000 RTX A4000", "RTX A4000 RTX A5000"}


@pytest.mark.parametrize("users", [1, 8])
@pytest.mark.parametrize(("other", "slots"), [("1xA4000", 8), ("1xL40S", 48)])
def test_each_layer_has_room_for_its_adapters(other: str, slots: int, users: int) -> None:
    assert len(pipelines(f"1xA5000 + {other}, net=10GbE", with_adapters(slots, users))) == 2
