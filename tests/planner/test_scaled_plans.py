"""Models whose replicas follow the load, as the planner sees them: their room, and objectives that nothing keeps."""

from __future__ import annotations

from planner_builders import node
from test_decide import FOUR_CARDS, decided

BIG = "builtin:random-1b"


def test_room_for_the_first_is_needed_and_for_the_most_is_told() -> None:
    found = decided(
        f"models: [{{source: {BIG}, replicas: {{min: 1, max: 8, target_ongoing_requests: 4}}}}]", FOUR_CARDS
    )
    assert not found.problems
    (notes,) = found.notes.values()
    assert "it may have 8 replicas, and there is room for 4 beside what the others have now" in notes
    (model,) = found.fleet.models
    assert (model.num_replicas, model.max_replicas) == (1, 8)


def test_objective_that_a_lone_request_misses_is_refused_with_the_nearest_that_works() -> None:
    found = decided(f"models: [{{source: {BIG}, replicas: {{max: 4, slo: {{ttft_ms: 1}}}}}}]", FOUR_CARDS)
    (problem,) = found.problems
    assert problem.where == "models[0].replicas.slo.ttft_ms"
    assert "no plan keeps ttft_ms: 1" in problem.what
    limit = int(problem.hint.removeprefix("write ttft_ms: ").split(",")[0])
    again = decided(f"models: [{{source: {BIG}, replicas: {{max: 4, slo: {{ttft_ms: {limit}}}}}}}]", FOUR_CARDS)
    assert not again.problems


def test_each_class_is_looked_at() -> None:
    slo = "[{priority: 0, ttft_ms: 2000}, {itl_ms: 0.5}]"
    found = decided(f"models: [{{source: {BIG}, replicas: {{max: 4, slo: {slo}}}}}]", FOUR_CARDS)
    assert [problem.where for problem in found.problems] == ["models[0].replicas.slo[1].itl_ms"]


def test_fake_engine_has_no_forecast_and_is_told_its_room() -> None:
    fleet = "models: [{source: builtin:tiny, engine: fake, replicas: {max: 9, slo: {ttft_ms: 0.001}}}]"
    found = decided(fleet, (node(1, cpus=4),))
    assert not found.problems
    (notes,) = found.notes.values()
    assert "it may have 9 replicas, and there is room for 4 beside what the others have now" in notes


def test_open_split_is_that_of_the_whole_load_and_not_of_one_replica_on_all_cards() -> None:
    scaled = decided(
        f"models: [{{source: {BIG}, split: auto, replicas: {{min: 1, max: 8, target_ongoing_requests: 4}}}}]",
        FOUR_CARDS,
    )
    planned = decided(f"models: [{{source: {BIG}, split: auto, replicas: auto}}]", FOUR_CARDS)
    assert not scaled.problems
    assert scaled.fleet.models[0].ranks == planned.fleet.models[0].ranks
    assert scaled.fleet.models[0].num_replicas == 1
