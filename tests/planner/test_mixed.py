"""Stages of one replica on nodes of several sorts: chosen where equal ones do not do, bound to what was counted."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_builders import checked, fleet, node

from longboat.builtin import describe
from longboat.catalog.formats.hf_config import facts_from_config
from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.quantization.requantize import requantized
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.core.topology import Node
from longboat.engines.registry import adapter_for, splits_of
from longboat.planner.fleet.check_fleet import FleetCheck
from longboat.planner.fleet.decide import Decision, decide
from longboat.planner.fleet.inputs import PlannerInputs
from longboat.planner.fleet.place import strategy
from longboat.planner.fleet.resources import matches
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.search.demand import Demand
from longboat.planner.search.forecast_document import planned_values
from longboat.planner.search.search import search
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet
from longboat.spec.types.fleet import Fleet, ModelSpec
from longboat.spec.wanted import fleet_with_numbers, wanted_model, wanted_models

GIB = 1024**3
LIBRARY = built_in_library()
AWQ = "models: [{source: 'hf:catalog/%s', name: q, split: auto, replicas: %s%s}]"
LABEL = "longboat.accelerator"


def gpus(number: int, count: int, name: str, **labels: str) -> Node:
    return node(number, cpus=16, gpus=count, **{LABEL: name, "ray.io/node-id": f"{number:056x}"}, **labels)


A5000_A4000 = (gpus(1, 1, "RTX-A5000"), gpus(2, 1, "RTX-A4000"))


class Found:
    """A decision about one model ``q``, with the plan of what was decided."""

    def __init__(self, asked: Fleet, on: tuple[Node, ...], decision: Decision, plan: FleetCheck | None) -> None:
        self.asked, self.on, self.decision, self.plan = asked, on, decision, plan
        self.fleet = fleet_with_numbers(asked, decision.models)

    @property
    def spec(self) -> ModelSpec:
        return self.fleet.models[0]

    @property
    def bound(self) -> list[str]:
        """The first label's value of each stage."""
        return [next(iter(labels.values()), "") for labels in self.spec.placement.stages or ()]

    @property
    def placed(self) -> tuple[tuple[str, ...], ...]:
        assert self.plan is not None
        return self.plan.packing.placed["q"]


def found(
    text: str | Fleet,
    on: tuple[Node, ...],
    *,
    memory_gib: dict[str, float] | None = None,
    accelerators: dict[str, str] | None = None,
    kept: ModelSpec | None = None,
) -> Found:
    """``hf:`` models are those of the catalog in awq on GPUs, the others built-in ones on processors."""
    asked = fleet(text) if isinstance(text, str) else text
    (model,) = asked.models
    on_gpu = model.source.startswith("hf:")
    platform = "cuda" if on_gpu else "cpu"
    config = {} if on_gpu else describe(model.source).config
    entry = LIBRARY.models.find(model.source.removeprefix("hf:catalog/")) if on_gpu else None
    shape = requantized(shape_of_entry(entry), "awq") if entry else shape_from_config(config, name="q")
    memory = adapter_for(model.engine.kind).memory(model.engine.args, platform)
    assert memory is not None
    inputs = PlannerInputs(
        nodes=on,
        facts={} if on_gpu else {"q": facts_from_config(config)},
        platforms={"q": platform},
        library=LIBRARY,
        shapes={"q": shape},
        memory={"q": memory},
        memory_bytes={name: int(gib * GIB) for name, gib in (memory_gib or {}).items()},
        accelerators=accelerators or {},
    )
    decision = decide(wanted_models(asked, splits_of), inputs, {"q": wanted_model(kept, splits_of)} if kept else {}, {})
    plan = None if decision.problems else checked(fleet_with_numbers(asked, decision.models), inputs)
    return Found(asked, on, decision, plan)


def check(one: Found) -> None:
    """What holds for every decision: bytes fit where they are placed, layers add up, nothing is placed twice."""
    assert one.plan is not None
    assert one.plan.problems == ()
    forecast, shape = one.decision.forecasts["q"], one.plan.shapes["q"]
    stages = forecast.fit.split.stages
    assert forecast.fit.fits
    assert sum(stages) == len(forecast.shape.layers)
    assert min(stages) >= 1
    assert shape.layers in ((), stages)
    assert len(shape.stages) in (0, len(stages))
    for rank in forecast.fit.ranks:
        assert rank.used_bytes <= rank.budget_bytes <= rank.card.memory_bytes
    if not shape.stages:
        return
    by_id = {node.node_id: node for node in one.on}
    for gang in one.placed:
        assert len(gang) == len(stages)
        assert shape.shares_nodes or len(set(gang)) == len(gang)
        for stage, node_id in enumerate(gang):
            assert matches(by_id[node_id], shape.stages[stage])
            name = by_id[node_id].labels.get(LABEL)
            if name is not None:
                assert forecast.layout.places[stage].card.name == LIBRARY.accelerators.find(name).name
    used = [node_id for gang in one.placed for node_id in gang]
    for node_id, node_ in by_id.items():
        taken = used.count(node_id) * shape.tensor
        assert taken * shape.resources.num_gpus <= node_.num_gpus
        assert taken * shape.resources.num_cpus <= node_.num_cpus


def test_two_odd_cards_get_the_stages_that_the_search_finds_for_them() -> None:
    one = found(AWQ % ("Qwen3-32B", "auto", ", load: {users: 8}"), A5000_A4000)
    check(one)
    assert one.spec.replicas == 1
    assert one.spec.ranks.layers == (26, 38)
    assert one.bound == ["RTX-A4000", "RTX-A5000"]
    assert one.placed == (("n2", "n1"),)
    forecast = one.decision.forecasts["q"]
    cluster = parse_cluster("RTX A5000 + RTX A4000", LIBRARY)
    demand = Demand(users=8, prompt_tokens=1024, output_tokens=256)
    best = search([forecast.shape], cluster, demand, "vllm", built_in_calibration()).best
    assert best is not None
    (group,) = best.groups
    assert group.fit.split.stages == one.spec.ranks.layers
    assert [place.card.name for place in group.layout.places] == ["RTX A4000", "RTX A5000"]
    assert forecast.tokens_per_s == pytest.approx(best.tokens_per_s, rel=0.01)


def test_reason_says_what_equal_nodes_would_do() -> None:
    reason = found(AWQ % ("Qwen3-32B", "auto", ", load: {users: 8}"), A5000_A4000).decision.reasons["q"]
    assert "on equal nodes, 1 x one rank on RTX A5000" in reason
    assert "keeps 7 of 8 requests at once" in reason
    longer = found(AWQ % ("Qwen3-32B", "auto", ", context: 16384"), A5000_A4000)
    check(longer)
    assert "no layout on equal nodes fits" in longer.decision.reasons["q"]


def test_nothing_is_mixed_where_equal_nodes_suffice() -> None:
    one = found(AWQ % ("Qwen3-32B", "auto", ", load: {users: 2}"), A5000_A4000)
    check(one)
    assert one.spec.placement.stages is None
    assert one.spec.placement.labels == {LABEL: "RTX-A5000"}
    small = found(AWQ % ("Qwen3-8B", "auto", ", load: {users: 8}"), A5000_A4000)
    assert small.spec.placement.stages is None


def test_a_faster_and_a_slower_card_of_equal_memory() -> None:
    one = found(AWQ % ("Qwen3-32B", "auto", ", context: 16384"), (gpus(1, 1, "RTX4090"), gpus(2, 1, "RTX3090")))
    check(one)
    assert set(one.bound) == {"RTX4090", "RTX3090"}
    forecast = one.decision.forecasts["q"]
    layers = dict(zip(one.bound, forecast.fit.split.stages, strict=True))
    assert layers["RTX4090"] >= layers["RTX3090"]


def test_three_equal_cards_in_two_nodes_are_three_stages() -> None:
    """Two on one node and one on the other: the same number on each node is not possible."""
    one = found(AWQ % ("Llama-3.3-70B", "auto", ", context: 24576"), (gpus(1, 2, "RTX3090"), gpus(2, 1, "RTX3090")))
    check(one)
    assert one.spec.ranks.pipeline == 3
    assert one.spec.placement.stages == ({}, {}, {})
    assert one.plan is not None
    assert strategy(one.plan.shapes["q"]) == "PACK"
    assert sorted(one.placed[0]) == ["n1", "n1", "n2"]


def test_two_cards_and_another_one() -> None:
    one = found(AWQ % ("Llama-3.3-70B", "auto", ", context: 24576"), (gpus(1, 2, "RTX3090"), gpus(2, 1, "RTX-A4000")))
    check(one)
    assert sorted(one.bound) == ["RTX-A4000", "RTX3090", "RTX3090"]
    assert one.spec.placement.nodes is None


def test_processors_with_different_memory_get_layers_by_it() -> None:
    text = """models: [{source: builtin:random-250m, name: q, split: auto, replicas: auto, context: 256,
        load: {users: 2, prompt_tokens: 64, output_tokens: 64}}]"""
    on = (node(1, cpus=1, host="a"), node(2, cpus=1, host="b"))
    one = found(text, on, memory_gib={"n1": 1.2, "n2": 1.5})
    check(one)
    layers = dict(zip(one.bound, one.spec.ranks.layers or (), strict=True))
    assert layers["b"] > layers["a"]
    assert [rank.card.memory_bytes for rank in one.decision.forecasts["q"].fit.ranks] == [
        int({"a": 1.2, "b": 1.5}[host] * GIB) for host in one.bound
    ]
    enough = found(text, on, memory_gib={"n1": 2.0, "n2": 2.5})
    assert enough.spec.placement.stages is None


def test_what_was_decided_stays_and_is_decided_anew_without_the_node() -> None:
    text = AWQ % ("Qwen3-32B", "auto", ", load: {users: 8}")
    first = found(text, A5000_A4000)
    read = load_fleet(dump_fleet(first.fleet), "running").models[0]
    assert read == first.spec
    again = found(text, (*A5000_A4000, gpus(3, 1, "H100")), kept=read)
    assert again.spec == first.spec
    assert again.decision.reasons["q"] == "decided before"
    check(again)
    values = planned_values(again.decision.forecasts["q"], "hf:q")
    assert values == planned_values(first.decision.forecasts["q"], "hf:q")
    assert values["hardware"] == "RTX A4000 + RTX A5000"
    assert values["itl_s"] > 0
    gone = found(text, A5000_A4000[:1], kept=read)
    assert gone.spec.placement.stages is None
    check(gone)


def test_cards_that_only_the_driver_names_are_bound_by_another_label_or_by_id() -> None:
    text = AWQ % ("Qwen3-32B", "auto", ", context: 16384")
    told = {"n1": "NVIDIA RTX A5000", "n2": "NVIDIA RTX A4000"}
    ids = {number: {"ray.io/node-id": f"{number:056x}"} for number in (1, 2)}
    bare = tuple(node(number, cpus=16, gpus=1, **ids[number]) for number in (1, 2))
    by_id = found(text, bare, accelerators=told)
    assert by_id.placed == (("n2", "n1"),)
    assert "bound to nodes by ids" in by_id.decision.notes["q"][0]
    named = tuple(node(number, cpus=16, gpus=1, rack=f"r{number}", **ids[number]) for number in (1, 2))
    by_rack = found(text, named, accelerators=told)
    assert by_rack.spec.placement.stages == ({"rack": "r2"}, {"rack": "r1"})
    assert "q" not in by_rack.decision.notes or "ids" not in "".join(by_rack.decision.notes["q"])


@pytest.mark.parametrize("ids", [{}, {"ray.io/node-id": "0"}])
def test_where_no_label_tells_cards_apart_the_weakest_counts_and_the_plan_says_so(ids: dict[str, str]) -> None:
    told = {"n1": "NVIDIA H100 80GB HBM3", "n2": "NVIDIA RTX A4000"}
    bare = tuple(node(n, cpus=16, gpus=2, **{name: f"{value}{n}" for name, value in ids.items()}) for n in (1, 2))
    why = "no label tells nodes with H100 SXM from those with RTX A4000, so the weakest card counts"
    hint = "start them with --label longboat.accelerator=NAME"
    text = AWQ.replace("auto", "{tensor: 1}")
    assert f"{why}: {hint}" in found(text % ("Qwen3-8B", "auto", ""), bare, accelerators=told).decision.notes["q"]
    (problem,) = found(text % ("Llama-3.3-70B", "auto", ""), bare, accelerators=told).decision.problems
    assert why in problem.what and problem.hint == hint
    one_sort = found(text % ("Qwen3-8B", "auto", ""), bare, accelerators=dict.fromkeys(told, told["n1"])).decision
    assert "weakest" not in "".join(one_sort.notes.get("q", ()))


def test_refusal_names_what_forbids_a_mixed_replica_and_what_would_fit() -> None:
    text = AWQ % ("Qwen3-32B", "auto", ", context: 16384, placement: {nodes: 1}")
    (problem,) = found(text, A5000_A4000).decision.problems
    assert "RTX A5000 of stage 0 must hold 19.2 GiB of weights and buffers" in problem.what
    assert "not tried: several sorts of nodes, as placement.nodes is 1" in problem.what
    assert problem.hint == "leave it out: 24 + 40 layers on RTX A4000 + RTX A5000 would fit"


def test_more_replicas_than_there_are_cards_for_are_refused_with_the_number_that_fits() -> None:
    (problem,) = found(AWQ % ("Qwen3-32B", "2", ", context: 16384"), A5000_A4000).decision.problems
    assert problem.where == "models[0].replicas"
    assert problem.what == "2 replicas find no room, whatever their split; 1 on RTX A4000 + RTX A5000 would"
    assert problem.hint == "write replicas: 1, or add nodes"


def test_what_no_mixture_holds_is_refused_with_the_nearest() -> None:
    (problem,) = found(AWQ % ("Llama-3.3-70B", "auto", ""), A5000_A4000).decision.problems
    assert problem.what.startswith("no layout fits; the nearest: RTX A4000 of stage 0 must hold ")
    assert "of 15.6 GiB" in problem.what


def test_two_replicas_of_two_sorts_each() -> None:
    on = tuple(gpus(number, 1, "RTX-A5000" if number < 3 else "RTX-A4000") for number in (1, 2, 3, 4))
    one = found(AWQ % ("Qwen3-32B", "2", ", context: 24576"), on)
    check(one)
    assert len(one.placed) == 2
    assert {frozenset(gang) for gang in one.placed} == {frozenset(("n1", "n3")), frozenset(("n2", "n4"))}


def test_stages_on_nodes_of_one_sort_are_computed_for_its_cards() -> None:
    """The sort that the plan chose has nodes of different sizes, so its stages are bound one by one."""
    on = (gpus(1, 1, "RTX3090"), gpus(2, 2, "RTX3090"), gpus(3, 1, "RTX4090"))
    one = found(AWQ % ("Llama-3.3-70B", "auto", ", context: 32768, load: {users: 1}"), on)
    check(one)
    assert {place.card.name for place in one.decision.forecasts["q"].layout.places} == {"RTX 3090"}


CARDS = ("RTX-A4000", "RTX-A5000", "RTX3090", "RTX4090", "L4")
MACHINES = st.lists(st.tuples(st.sampled_from(CARDS), st.integers(1, 3)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    machines=MACHINES,
    model=st.sampled_from(("Qwen3-8B", "Qwen3-32B", "Llama-3.3-70B")),
    users=st.sampled_from((1, 8, 40)),
    context=st.sampled_from((2048, 8192, 32768)),
)
def test_no_plan_exceeds_a_card_and_stages_are_where_they_were_computed(
    machines: list[tuple[str, int]], model: str, users: int, context: int
) -> None:
    on = tuple(gpus(number, count, name) for number, (name, count) in enumerate(machines, 1))
    one = found(AWQ % (model, "auto", f", context: {context}, load: {{users: {users}}}"), on)
    if one.decision.problems:
        assert one.decision.problems[0].what
        assert one.decision.problems[0].hint
    else:
        check(one)


@settings(max_examples=30, deadline=None)
@given(memory=st.lists(st.floats(0.8, 2.5), min_size=1, max_size=3), cpus=st.lists(st.integers(1, 3), min_size=3))
def test_no_plan_exceeds_the_memory_of_a_node_with_processors(memory: list[float], cpus: list[int]) -> None:
    text = """models: [{source: builtin:random-250m, name: q, split: auto, replicas: 1, context: 256,
        load: {users: 2, prompt_tokens: 64, output_tokens: 64}}]"""
    on = tuple(node(number, cpus=cpus[number - 1], host=f"h{number}") for number in range(1, len(memory) + 1))
    told = {one.node_id: gib for one, gib in zip(on, memory, strict=True)}
    one = found(text, on, memory_gib=told)
    if one.decision.problems or not one.spec.placement.stages:
        return
    check(one)
    fit = one.decision.forecasts["q"].fit
    for name, gib in told.items():
        here = [rank for rank in fit.ranks if one.placed[0][rank.stage] == name]
        assert sum(rank.used_bytes for rank in here) <= gib * GIB


STAGES = "models: [{source: 'builtin:tiny', name: q, split: {pipeline: 2}, placement: {%s}}]"


@pytest.mark.parametrize(
    ("placement", "where", "what", "hint"),
    [
        ("stages: [{host: a}]", "placement.stages", "labels for 1 stage, and the model is split into 2", "pipeline: 1"),
        ("stages: [{host: a}, {host: c}]", "placement.stages[1]", "carries host=c", "host is one of: a, b"),
        ("stages: [{host: a}, {host: b}], nodes: 1", "placement.nodes", "1 nodes for 2 stages", "write nodes: 2"),
        ("stages: [{host: a}, {host: a}], nodes: 2", "placement.stages", "each on a node of its own", "leave out"),
        ("stages: [{host: a}, {host: a}]", "", "", ""),
        ("stages: [{host: b}, {host: b}]", "placement.stages", "find no room together", "other nodes"),
    ],
)
def test_stages_by_hand(placement: str, where: str, what: str, hint: str) -> None:
    on = (node(1, cpus=2, host="a"), node(2, cpus=1, host="b"))
    asked = fleet(STAGES % placement)
    plan = checked(asked, PlannerInputs(nodes=on))
    if not where:
        assert plan.problems == ()
        assert plan.packing.placed["q"] == (("n1", "n1"),)
        return
    (problem,) = plan.problems
    assert problem.where == f"models[0].{where}"
    assert what in problem.what
    assert hint in problem.hint


GGUF = """models: [{source: 'builtin:random-250m', name: q, engine: llama.cpp, split: %s, context: 512,
 load: {users: 2, prompt_tokens: 64, output_tokens: 64}}]"""
PROCESSOR = "longboat.processor"
NEW, OLD = "Desktop-2ch-DDR5-5600", "Desktop-2ch-DDR3-1600"


def processor(number: int, name: str) -> Node:
    return node(number, cpus=4, **{PROCESSOR: name})


@pytest.mark.parametrize("split", ["auto", "{pipeline: auto}"])
def test_llama_cpp_fills_the_quicker_processor_first(split: str) -> None:
    """Its stages compute in turn: each layer on the slower processor costs every token time."""
    two = (processor(1, OLD), processor(2, NEW))
    one = found(GGUF % split, two, memory_gib={"n1": 0.7, "n2": 0.6})
    check(one)
    layers = dict(zip(one.bound, one.decision.forecasts["q"].fit.split.stages, strict=True))
    assert layers[NEW] > 2 * layers[OLD]
    forecast = one.decision.forecasts["q"]
    new, old = (next(p for p in forecast.layout.places if name in p.machine.name) for name in ("DDR5", "DDR3"))
    assert new.machine.bandwidth_bytes_per_s == pytest.approx(3.5 * old.machine.bandwidth_bytes_per_s)
    assert new.card.name == "1/4 CPUs of Desktop 2ch DDR5-5600"


def test_llama_cpp_puts_no_two_stages_on_one_node() -> None:
    """One process computes all layers of a node: a second stage there would only cost a hop."""
    one = found(GGUF % "auto", (processor(1, NEW),), memory_gib={"n1": 0.5})
    (problem,) = one.decision.problems
    assert "no layout fits" in problem.what


def test_a_processor_that_the_catalog_lacks_is_refused_with_the_nearest() -> None:
    one = found(GGUF % "auto", (processor(1, "Desktop-2ch-DDR5-5601"), processor(2, OLD)))
    (problem,) = one.decision.problems
    assert "Desktop-2ch-DDR5-5601" in problem.what
    assert "Desktop 2ch DDR5-5600" in problem.hint


def test_a_card_s_name_as_a_processor_is_refused() -> None:
    one = found(GGUF % "auto", (processor(1, "RTX4090"), processor(2, OLD)))
    (problem,) = one.decision.problems
    assert "names an accelerator, not a processor" in problem.what


def test_a_slower_processor_beside_makes_no_plan_worse() -> None:
    """The model fits on the quicker one, wherever that stands in the list of nodes."""
    alone = found(GGUF % "auto", (processor(1, NEW),)).decision.forecasts["q"].tokens_per_s
    for two in ((processor(1, OLD), processor(2, NEW)), (processor(1, NEW), processor(2, OLD))):
        one = found(GGUF % "auto", two)
        check(one)
        assert one.decision.forecasts["q"].tokens_per_s == pytest.approx(alone)
        assert one.spec.placement.labels == {PROCESSOR: NEW}


def test_bound_stages_of_llama_cpp_get_their_layers() -> None:
    """Without them, llama.cpp would divide all layers over the other nodes."""
    text = GGUF % "{pipeline: 3}" + "\n"
    bound = text.replace("context: 512", f"placement: {{stages: [{{{PROCESSOR}: {NEW}}}, {{}}, {{}}]}}, context: 512")
    one = found(bound, (processor(1, NEW), processor(2, OLD), processor(3, OLD)))
    assert one.plan is not None
    assert one.plan.shapes["q"].layers == one.decision.forecasts["q"].fit.split.stages == (7, 7, 6)


def test_stages_of_llama_cpp_that_are_bound_to_the_same_label_get_a_node_each() -> None:
    text = GGUF % f"{{pipeline: 2}}, placement: {{stages: [{{{PROCESSOR}: {NEW}}}, {{{PROCESSOR}: {NEW}}}]}}"
    one = found(text, (processor(1, NEW), processor(2, NEW)))
    assert len(set(one.placed[0])) == 2
    alone = found(text, (processor(1, NEW),))
    assert alone.decision.problems or alone.plan is None or alone.plan.problems
