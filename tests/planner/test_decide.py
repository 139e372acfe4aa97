"""What `auto` in a fleet file becomes: numbers from facts, stable, and refused where there can be none."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import pytest
from planner_builders import checked, fleet, node, nodes

from longboat.builtin import describe
from longboat.catalog.formats.hf_config import facts_from_config
from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.core.plan import EngineMemory
from longboat.core.states import EngineActual
from longboat.core.topology import Node
from longboat.engines.card_parts import planned_memory
from longboat.engines.registry import adapter_for, splits_of
from longboat.planner.fleet.decide import Decision, decide
from longboat.planner.fleet.inputs import PlannerInputs
from longboat.planner.memory.engine import engine_traits
from longboat.planner.memory.processor_part import processor_part
from longboat.planner.memory.split_shape import even_stages
from longboat.planner.predict.calibration.rows import read_rows
from longboat.planner.predict.calibration.sample import SampleMaker
from longboat.planner.predict.machine import LOOPBACK, Machine, machine_for, machine_of
from longboat.planner.search.forecast_document import planned_values
from longboat.planner.search.measured import at_users, merged_rows, pair_of, row_of
from longboat.planner.search.partition import Place, StageTimes
from longboat.spec.types.fleet import Fleet, ModelSpec
from longboat.spec.wanted import fleet_with_numbers, wanted_model, wanted_models

GIB = 1024**3
LIBRARY = built_in_library()
FOUR_CARDS = (node(1, cpus=16, gpus=4, **{"longboat.accelerator": "RTX4090"}),)
AUTO = "{source: builtin:tiny, split: auto, replicas: auto}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided(Decision):
    """A decision, and the fleet file with its numbers."""

    fleet: Fleet


def decided(
    told: Fleet | str,
    on: tuple[Node, ...],
    *,
    memory_gib: float = 24,
    accelerators: str = "",
    kept: dict[str, ModelSpec] | None = None,
    running: Fleet | None = None,
) -> Decided:
    """The fleet on CPU nodes, or on nodes with these accelerators; ``hf:`` models are those of the catalog."""
    asked = fleet(told) if isinstance(told, str) else told
    platform = "cuda" if any(one.num_gpus for one in on) else "cpu"
    shapes, facts, memory = {}, {}, {}
    for model in asked.models:
        settings: EngineMemory | None = planned_memory(
            adapter_for(model.engine.kind), model.engine.args, platform, model.resources.gpus
        )
        if settings is None:
            continue
        memory[model.name] = settings
        if model.source.startswith("builtin:"):
            config = describe(model.source).config
            shapes[model.name], facts[model.name] = (
                shape_from_config(config, name=model.name),
                facts_from_config(config),
            )
        elif model.source.startswith("hf:catalog/"):
            shapes[model.name] = shape_of_entry(LIBRARY.models.find(model.source.removeprefix("hf:catalog/")))
    inputs = PlannerInputs(
        nodes=on,
        facts=facts,
        platforms=dict.fromkeys([m.name for m in asked.models], platform),
        library=LIBRARY,
        shapes=shapes,
        memory=memory,
        unknown={m.name: "it is not in the catalog" for m in asked.models if m.name not in shapes},
        memory_bytes={one.node_id: int(memory_gib * GIB) for one in on},
        accelerators=dict.fromkeys([one.node_id for one in on], accelerators) if accelerators else {},
    )
    now = {model.name: model for model in wanted_models(running, splits_of)} if running else {}
    before = {name: wanted_model(model, splits_of) for name, model in (kept or {}).items()}
    found = decide(wanted_models(asked, splits_of), inputs, before, now)
    written = fleet_with_numbers(asked, found.models)
    if not found.problems:
        assert not checked(written, inputs).problems, "what is decided finds room"
    return Decided(**{field.name: getattr(found, field.name) for field in fields(found)}, fleet=written)


def numbers(found: Decided, name: str = "tiny") -> tuple[int, int, int]:
    """Replicas, tensor, pipeline."""
    model = found.fleet.model_named(name)
    assert model is not None
    return model.num_replicas, model.ranks.tensor, model.ranks.pipeline


def test_small_model_is_replicated_as_often_as_there_is_room() -> None:
    assert numbers(decided(f"models: [{AUTO}]", nodes(1, cpus=2))) == (2, 1, 1)


def test_no_replica_is_without_a_user() -> None:
    text = "models: [{source: builtin:tiny, split: {tensor: 1}, replicas: auto, load: {users: 3}}]"
    assert numbers(decided(text, nodes(4, cpus=8))) == (3, 1, 1)


def test_a_model_that_needs_the_room_kept_for_later_ones_gets_it() -> None:
    """On one card it does not fit: what that try took is free again for the next."""
    on = (node(1, cpus=16, gpus=2, **{"longboat.accelerator": "RTX4090"}),)
    found = decided(f"models: [{{source: 'hf:catalog/Qwen3-14B', name: q, split: auto}}, {AUTO}]", on)
    assert numbers(found, "q") == (1, 2, 1)
    assert [problem.where for problem in found.problems] == ["models[1].split"]


def test_settings_that_the_engine_is_not_given_are_not_counted() -> None:
    """With its own, vLLM has 3.2 GiB for caches, fewer than a request takes: it ends at its start."""
    on = (node(1, cpus=16, gpus=1, **{"longboat.accelerator": "H100"}),)
    text = "models: [{source: 'hf:catalog/gpt-oss-120b', name: g, split: auto, context: 131072%s}]"
    (problem,) = decided(text % "", on).problems
    args = '"--max-num-batched-tokens=2048", "--max-num-seqs=256"'
    assert problem.hint == f"write engine: {{kind: vllm, args: [{args}]}}"
    found = decided(text % f", {problem.hint.removeprefix('write ')}", on)
    assert not found.problems
    assert found.forecasts["g"].fit.fits


def test_replicas_fill_all_cards_that_another_model_leaves() -> None:
    on = tuple(node(number, cpus=16, gpus=8, **{"longboat.accelerator": "RTX4090"}) for number in (1, 2))
    one, auto = "{source: builtin:tiny, name: one}", "{source: builtin:tiny, split: {tensor: 1}, replicas: auto, %s}"
    found = decided(f"models: [{one}, {auto % 'load: {users: 64}'}]", on)
    assert [model.num_replicas for model in found.models] == [1, 15]


def test_fixed_replicas_leave_the_split_to_decide() -> None:
    found = decided("models: [{source: builtin:tiny, split: auto, replicas: 2}]", nodes(1, cpus=2))
    assert numbers(found) == (2, 1, 1)


def test_fixed_split_leaves_the_replicas_to_decide() -> None:
    text = "models: [{source: builtin:tiny, split: {pipeline: 2}, replicas: auto}]"
    assert numbers(decided(text, nodes(2, cpus=3))) == (3, 1, 2)


@pytest.mark.parametrize(
    ("split", "found"),
    [
        ("{tensor: auto, pipeline: 2}", (1, 2, 2)),
        ("{tensor: 2, pipeline: auto}", (1, 2, 2)),
        ("{tensor: auto}", (1, 4, 1)),
        ("{pipeline: auto}", (1, 1, 4)),
        ("{tensor: auto, pipeline: auto}", (1, 4, 1)),
    ],
)
def test_part_of_a_split_that_is_a_number_is_held(split: str, found: tuple[int, int, int]) -> None:
    """64 GB of weights on four cards of 24: all of them are needed, and the number says in which way."""
    text = f"models: [{{source: 'hf:catalog/Qwen3-32B', name: q, split: {split}, replicas: auto}}]"
    assert numbers(decided(text, FOUR_CARDS), "q") == found


def test_layers_are_the_planners_where_the_number_of_stages_is() -> None:
    text = "models: [{source: 'hf:catalog/Qwen3-32B', name: q, split: {pipeline: %s, tensor: %s}}]"
    uneven = decided(text % ("auto", 1), FOUR_CARDS).fleet.models[0].ranks.layers
    assert uneven is not None
    assert uneven != even_stages(64, 4)
    assert decided(text % (4, "auto"), FOUR_CARDS).fleet.models[0].ranks.layers is None
    told = "models: [{source: 'hf:catalog/Qwen3-32B', name: q, split: {tensor: auto, pipeline: 2, layers: [30, 34]}}]"
    assert decided(told, FOUR_CARDS).fleet.models[0].ranks.layers == (30, 34)


def test_part_of_a_split_that_cannot_be_is_refused_at_its_place() -> None:
    (problem,) = decided("models: [{source: builtin:tiny, split: {tensor: 3, pipeline: auto}}]", nodes(2)).problems
    assert (problem.where, problem.what) == (
        "models[0].split.tensor",
        "8 attention heads are not divisible by tensor 3",
    )
    text = "models: [{source: 'hf:catalog/Qwen3-32B', name: q, split: {tensor: %s, pipeline: %s}}]"
    (unknown,) = decided(text % (3, "auto"), FOUR_CARDS).problems
    assert "64 attention heads are not divisible by tensor 3" in unknown.what
    (room,) = decided(text % (8, "auto"), FOUR_CARDS).problems
    assert "8 GPUs" in room.what
    assert "at most 4 worker ranks" in room.hint


def test_fake_engine_is_split_as_far_as_it_is_told() -> None:
    text = "models: [{source: builtin:tiny, engine: fake, split: {tensor: 2, pipeline: auto}}]"
    assert numbers(decided(text, nodes(1, cpus=8))) == (1, 2, 1)


def test_model_that_no_node_holds_alone_is_split_over_nodes() -> None:
    found = decided(
        "models: [{source: builtin:random-1b, split: auto, load: {users: 1, prompt_tokens: 64, output_tokens: 64}}]",
        nodes(4, cpus=1),
        memory_gib=2.4,
    )
    replicas, tensor, pipeline = numbers(found, "random-1b")
    assert (replicas, tensor * pipeline) == (1, pytest.approx(3, abs=1))
    forecast = found.forecasts["random-1b"]
    assert forecast.fit.fits
    assert forecast.rank_bytes <= 2.4 * GIB
    assert forecast.layout.num_ranks == tensor * pipeline


def test_gpus_are_known_by_label_or_by_what_the_node_says() -> None:
    text = "models: [{source: 'hf:catalog/Qwen3-8B', name: q, split: auto, replicas: auto}]"
    labelled = tuple(node(n, cpus=8, gpus=2, **{"longboat.accelerator": "RTX4090"}) for n in (1, 2))
    bare = tuple(node(n, cpus=8, gpus=2) for n in (1, 2))
    by_label, by_word = decided(text, labelled), decided(text, bare, accelerators="NVIDIA GeForce RTX 4090")
    assert numbers(by_label, "q") == numbers(by_word, "q")
    assert by_label.forecasts["q"].layout.places[0].card.name == "RTX 4090"
    unknown = decided(text, bare)
    assert "no label says which accelerators host1 has" in unknown.problems[0].what
    assert "longboat.accelerator" in unknown.problems[0].hint


def test_model_on_one_sort_of_several_accelerators_is_kept_there() -> None:
    on = (
        node(1, cpus=8, gpus=1, **{"longboat.accelerator": "A4000"}),
        node(2, cpus=8, gpus=1, **{"longboat.accelerator": "H100"}),
    )
    text = "models: [{source: 'hf:catalog/Qwen3-32B', name: q, split: auto, replicas: auto}]"
    found = decided(text, on)
    assert found.fleet.models[0].placement.labels == {"longboat.accelerator": "H100"}


def test_uneven_stages_are_written_as_layers() -> None:
    text = "models: [{source: 'hf:catalog/Qwen3-32B', name: q, split: {pipeline: 2, layers: [30, 34]}}]"
    found = decided(text, (node(1, cpus=8, gpus=2, **{"longboat.accelerator": "A100"}),))
    assert found.forecasts["q"].fit.split.stages == (30, 34)
    assert found.forecasts["q"].layers == (30, 34)
    assert even_stages(64, 2) != (30, 34)


def test_stages_on_processors_are_balanced_with_the_speed_of_32_bits() -> None:
    """The slowest stage is as quick as it can be on the machine as vLLM uses it there; with 16 bits another one is."""
    load, cache = "{users: 8, prompt_tokens: 1024, output_tokens: 256}", 4 * GIB
    text = f"""
models:
- {{source: 'hf:catalog/Qwen3-0.6B', name: q, split: {{tensor: 1, pipeline: auto}}, placement: {{nodes: 2}},
    engine: {{args: ["--kv-cache-memory-bytes={cache}"]}}, load: {load}}}
"""
    forecast = decided(text, nodes(2, cpus=1)).forecasts["q"]
    model, place = forecast.shape, forecast.layout.places[0]
    times = StageTimes(model, engine_traits("vllm"), forecast.demand.traffic(1.0))

    def best(machine: Machine) -> tuple[int, int]:
        there = Place(pool=0, card=place.card, machine=machine, link=LOOPBACK)
        layer_s = times.layer_s(model.layers[0], there, 1, 1, 4.0)
        head_s = times.head_s(there, 1, 1, 4.0)
        num_layers = len(model.layers)
        first = min(range(1, num_layers), key=lambda count: max(count, num_layers - count + head_s / layer_s))
        return first, num_layers - first

    narrow = replace(machine_of(processor_part(LIBRARY, 1)), memory_bytes=place.machine.memory_bytes)
    assert place.machine == machine_for(narrow, "vllm")
    assert forecast.fit.split.stages == best(place.machine)
    assert best(narrow) != best(place.machine)


def test_models_with_numbers_come_first_then_the_others_in_their_order() -> None:
    text = f"""
models:
- {AUTO.replace("source", "name: a, source")}
- {AUTO.replace("source", "name: b, source")}
- {{name: c, source: builtin:tiny, replicas: 2}}
"""
    found = decided(text, nodes(1, cpus=6))
    assert [numbers(found, name)[0] for name in "abc"] == [3, 1, 2]


def test_what_was_decided_stays_when_a_node_joins() -> None:
    asked = fleet(f"models: [{AUTO}]")
    first = decided(asked, nodes(1, cpus=2))
    again = decided(asked, nodes(4, cpus=2), kept={"tiny": first.fleet.models[0]}, running=first.fleet)
    assert again.fleet == first.fleet
    assert again.reasons["tiny"] == "decided before"
    assert decided(asked, nodes(4, cpus=2)).fleet != first.fleet


def test_what_was_decided_is_decided_anew_where_it_finds_no_room() -> None:
    asked = fleet(f"models: [{AUTO}]")
    first = decided(asked, nodes(2, cpus=2))
    assert numbers(first)[0] == 4
    again = decided(asked, nodes(1, cpus=2), kept={"tiny": first.fleet.models[0]}, running=first.fleet)
    assert numbers(again) == (2, 1, 1)


def test_limits_decide_before_tokens_per_second() -> None:
    text = "models: [{source: 'hf:catalog/Llama-3.1-8B', name: q, split: auto, replicas: auto, load: {users: 256%s}}]"
    on = (node(1, cpus=16, gpus=2, **{"longboat.accelerator": "RTX4090"}),)
    free = decided(text % "", on).forecasts["q"]
    assert free.outcome is not None
    limit_ms = free.prediction.itl_s.value * 1e3 * 0.8
    bound = decided(text % f", itl_ms: {limit_ms}", on).forecasts["q"]
    assert bound.outcome is not None
    assert bound.prediction.itl_s.value * 1e3 <= limit_ms
    assert bound.tokens_per_s < free.tokens_per_s


def test_fake_engine_has_a_replica_for_each_user() -> None:
    text = "models: [{source: builtin:tiny, engine: fake, split: auto, replicas: auto, load: {users: 5}}]"
    assert numbers(decided(text, nodes(1, cpus=8))) == (5, 1, 1)
    assert numbers(decided(text, nodes(1, cpus=3))) == (3, 1, 1)


def test_unknown_model_is_not_planned_and_not_refused() -> None:
    found = decided("models: [{source: 'hf:a/b'}]", nodes(1))
    assert found.problems == ()
    assert found.notes["b"] == ("not planned: it is not in the catalog",)


def test_unknown_model_cannot_be_split_automatically() -> None:
    (problem,) = decided("models: [{source: 'hf:a/b', split: auto}]", nodes(1)).problems
    assert problem.where == "models[0].split"
    assert "not in the catalog" in problem.what
    assert "write numbers" in problem.hint


def test_weights_that_no_memory_holds_are_refused() -> None:
    (problem,) = decided("models: [{source: builtin:random-10b}]", nodes(1)).problems
    assert problem.where == "models[0].split"
    assert "25.9 GiB of weights in float32" in problem.what
    assert "24.0 GiB" in problem.what
    assert "tensor" in problem.hint


def test_context_that_the_cache_cannot_hold_is_refused_with_one_that_it_can() -> None:
    text = "models: [{source: builtin:random-1b, context: %d}]"
    (problem,) = decided(text % 8192, nodes(1)).problems
    assert problem.where == "models[0].context"
    assert "one request of 8192 tokens takes 1.8 GiB of cache" in problem.what
    assert problem.hint == "write context: 288, or engine.args: [--kv-cache-memory-bytes=1879048192]"
    assert not decided(text % 288, nodes(1)).problems


def test_model_that_runs_is_not_refused() -> None:
    asked = fleet("models: [{source: builtin:random-10b}]")
    assert not decided(asked, nodes(1), running=asked).problems


@pytest.mark.parametrize("args", ["[--quantization, fp8]", "[--cpu-offload-gb=20]"])
def test_settings_that_change_what_it_takes_are_noted_and_not_refused(args: str) -> None:
    text = f"models: [{{source: builtin:random-10b, engine: {{args: {args}}}}}]"
    found = decided(text, nodes(1))
    assert found.problems == ()
    assert "not checked" in found.notes["random-10b"][0]


def test_estimates_alone_refuse_nothing() -> None:
    """Weights fit, what the engine takes besides may not: that is said, and no more."""
    found = decided("models: [{source: builtin:random-100m}]", nodes(1), memory_gib=0.6)
    assert found.problems == ()
    assert "it may not fit" in found.notes["random-100m"][0]


def test_nothing_fits_is_told_with_the_nearest() -> None:
    (problem,) = decided("models: [{source: builtin:random-1b, split: auto, context: 8192}]", nodes(1, cpus=2)).problems
    assert problem.where == "models[0].split"
    assert problem.what.startswith("no layout fits; the nearest: ")
    assert "--kv-cache-memory-bytes" in problem.hint


@pytest.mark.parametrize(("model", "form"), [("gpt-oss-20b", "mxfp4"), ("Qwen3-0.6B", "fp32")])
def test_a_kept_row_is_read_as_the_form_that_was_planned(model: str, form: str) -> None:
    """On processors: a quantized model stays one, of which only the other weights are widened."""
    text = f"models: [{{source: 'hf:catalog/{model}', name: q, load: {{prompt_tokens: 64, output_tokens: 64}}}}]"
    forecast = decided(text, nodes(1, cpus=2), memory_gib=60).forecasts["q"]
    measured = EngineActual(
        num_tokens=900, concurrency=2.0, itl_s=0.004, ttft_s=0.03, prompt_tokens=60.0, output_tokens=60.0
    )
    planned = planned_values(forecast, f"hf:catalog/{model}")
    line = row_of(planned, pair_of(planned, [measured]), engine="vllm", deployed="d")
    assert line is not None
    (row,) = read_rows(merged_rows("", [line]), "measured.csv")
    assert row.quantization == form
    maker = SampleMaker(library=LIBRARY, shape_of=lambda name: shape_of_entry(LIBRARY.models.find(name)))
    assert maker.deployment(row).shape == forecast.shape


def test_expected_times_lie_between_those_of_fewer_and_more_users() -> None:
    values = planned_values(decided(f"models: [{AUTO}]", nodes(1, cpus=2)).forecasts["tiny"], "builtin:tiny")
    few, some, many = (at_users(values, users) for users in (2, 3, 4))
    assert few and some and many
    assert few[0] < some[0] < many[0]
    assert at_users({}, 2) is None


ONE_CARD = (node(1, cpus=16, gpus=1, **{"longboat.accelerator": "H100"}),)
PART = "{{name: {name}, source: 'hf:catalog/{source}', replicas: {replicas}, resources: {{gpus: {gpus}}}}}"


def parts(*models: tuple[str, str, object, float]) -> Decided:
    rows = [PART.format(name=name, source=source, replicas=number, gpus=gpus) for name, source, number, gpus in models]
    return decided(f"models: [{', '.join(rows)}]", ONE_CARD)


def test_models_on_parts_of_a_card_get_parts_of_its_memory_and_speed() -> None:
    half, whole = parts(("a", "Qwen3-8B", 1, 0.5)), parts(("a", "Qwen3-8B", 1, 1))
    assert half.problems == whole.problems == ()
    of_half, of_whole = half.forecasts["a"], whole.forecasts["a"]
    assert of_half.fit.ranks[0].budget_bytes < 0.51 * of_whole.fit.ranks[0].budget_bytes
    assert of_half.outcome is not None
    assert of_whole.outcome is not None
    assert of_half.outcome.itl_s.value > 1.7 * of_whole.outcome.itl_s.value


def test_what_does_not_fit_a_part_of_a_card_is_refused_with_what_it_lacks() -> None:
    (problem,) = parts(("a", "Qwen3-8B", 1, 0.25), ("b", "Qwen3-8B", 1, 0.1)).problems
    assert problem.where == "models[1].split"
    assert "has 7.3 GiB (H100 SXM, gpu-memory-utilization 0.092 of 79.0 GiB)" in problem.what


def test_as_many_parts_are_taken_as_cards_have() -> None:
    found = parts(("a", "Qwen3-0.6B", "auto", 0.25), ("b", "Qwen3-0.6B", 1, 0.5))
    assert not found.problems
    assert (numbers(found, "a"), numbers(found, "b")) == ((2, 1, 1), (1, 1, 1))
