"""Data and expert parallel in the planner: shapes of gangs, refusals, `auto`, and figures beside published ones."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from longboat.catalog.formats.model_facts import ModelConfig
from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.core.plan import GangShape
from longboat.core.topology import Node
from longboat.core.wanted import Placement, WantedModel
from longboat.planner.fleet.place import NoShape, shape_gang
from longboat.planner.machines.cluster_text import parse_cluster
from longboat.planner.memory.fit import Fit, plan_fit
from longboat.planner.memory.split_shape import AskedSplit, EngineKind, Load, Split, card_of
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.search.demand import Demand
from longboat.planner.search.forecast import Forecast
from longboat.planner.search.search import search
from planner.test_decide import Decided, decided

LIBRARY = built_in_library()
MIXTURE = ModelConfig(num_heads=128, num_kv_heads=8, vocab_size=4096, num_layers=8, num_experts=256)
EIGHT = WantedModel(name="m", source="/m", tensor=4, data=4, expert=True)


def nodes(count: int, gpus: int = 8) -> list[Node]:
    return [Node(node_id=f"n{one}", address=f"10.0.0.{one}", num_cpus=64, num_gpus=gpus) for one in range(count)]


def shaped(model: WantedModel, count: int, facts: ModelConfig = MIXTURE) -> GangShape | NoShape:
    return shape_gang(model, facts, nodes(count), "cuda")


def refusal(model: WantedModel, count: int = 2, facts: ModelConfig = MIXTURE) -> tuple[str, str, str]:
    found = shaped(model, count, facts)
    assert isinstance(found, NoShape)
    problem = found.problems[0]
    return problem.where, problem.what, problem.hint


def test_data_parts_keep_together_and_stay_whole() -> None:
    whole = shaped(EIGHT, 4)
    assert isinstance(whole, GangShape)
    assert (whole.num_nodes, whole.num_ranks, whole.ranks_per_node, whole.data_per_node) == (2, 16, 8, 2)
    assert whole.title == "DP4 TP4 PP1 EP"
    assert "2 of 4 data parts" in whole.reason
    small = shaped(replace(EIGHT, data=2), 4)
    assert isinstance(small, GangShape)
    assert small.num_nodes == 1


@pytest.mark.parametrize(
    ("model", "where", "what", "hint"),
    [
        (replace(EIGHT, placement=Placement(nodes=8)), "placement.nodes", "8 nodes do not divide 4 data parts", "4"),
        (replace(EIGHT, tensor=1, data=1), "split.expert", "there is 1", "data: 2"),
        (replace(EIGHT, data=3, engine="sglang"), "split.expert", "256 experts cannot be divided over 12", "8 or 16"),
        (replace(EIGHT, tensor=8, data=64), "split.expert", "256 experts cannot be divided over 512", "256"),
        (
            replace(EIGHT, pipeline=2, placement=Placement(stages=({"a": "b"}, {}))),
            "placement.stages",
            "data: 4",
            "split.data: 1",
        ),
        (replace(EIGHT, data=16), "split", "64 GPU", "at most 16 worker ranks"),
    ],
)
def test_impossible_division_is_refused(model: WantedModel, where: str, what: str, hint: str) -> None:
    found = refusal(model)
    assert found[0] == where
    assert what in found[1]
    assert hint in found[2]


def test_dense_model_has_no_experts_to_divide() -> None:
    dense = replace(MIXTURE, num_experts=0)
    assert refusal(EIGHT, facts=dense)[:2] == ("split.expert", "the model is dense: it has 0 experts")
    assert isinstance(shaped(replace(EIGHT, expert=False), 2, dense), GangShape)


def fit_of(split: Split) -> Fit:
    shape = shape_of_entry(LIBRARY.models.find("DeepSeek-V3"))
    cards = [card_of(LIBRARY.accelerators.find("H100 SXM"))] * split.num_ranks
    return plan_fit(shape, cards, split, Load(context_tokens=4096, num_sequences=8))


def test_bytes_of_experts_are_divided_over_all_ranks_and_those_of_attention_over_a_part() -> None:
    split = Split(tensor=16, stages=(61,), expert_parallel=True)
    cut = fit_of(split)
    for data in (2, 4, 16):
        parts = fit_of(replace(split, data=data))
        assert parts.ranks[0].weights["experts"] == cut.ranks[0].weights["experts"]
        tensor = fit_of(replace(split, tensor=16 // data, expert_parallel=False))
        assert parts.ranks[0].weights["attention"] == tensor.ranks[0].weights["attention"]
        assert parts.num_kv_tokens > cut.num_kv_tokens
    sliced = fit_of(replace(split, data=4, expert_parallel=False))
    assert sliced.ranks[0].weights["experts"] == pytest.approx(cut.ranks[0].weights["experts"], rel=0.01)


def forecast(text: str, model: str, engine: EngineKind, asked: AskedSplit, demand: Demand) -> Forecast:
    shape = shape_of_entry(LIBRARY.models.find(model))
    wanted = replace(demand, split=asked, data_attention=True)
    best = search([shape], parse_cluster(text, LIBRARY), wanted, engine, built_in_calibration()).best
    assert best is not None
    return best.groups[0]


NODES = "2x(8xH100), net=8xNDR"
MANY = Demand(users=512, prompt_tokens=2000, output_tokens=1000)


def test_two_nodes_of_h100_serve_many_users_best_by_data_and_experts() -> None:
    best = forecast(NODES, "DeepSeek-V3", "vllm", AskedSplit(), MANY)
    assert best.layout.expert_parallel
    assert best.layout.data >= 4
    assert best.fit.holds
    one = forecast(NODES, "DeepSeek-V3", "vllm", AskedSplit(tensor=16, data=1), MANY)
    assert best.tokens_per_s > 1.5 * one.tokens_per_s
    assert best.max_sequences > 4 * one.max_sequences


def test_slow_network_is_no_place_for_dividing_experts_over_nodes() -> None:
    best = forecast("2x(8xH100), net=10GbE", "DeepSeek-V3", "vllm", AskedSplit(), MANY)
    assert not best.layout.over_network


@pytest.mark.parametrize(("data", "tensor"), [(2, 8), (16, 1), (4, 4)])
def test_asked_division_is_what_is_planned(data: int, tensor: int) -> None:
    asked = AskedSplit(tensor=tensor, data=data, expert_parallel=True)
    found = forecast(NODES, "DeepSeek-V3", "vllm", asked, MANY)
    assert (found.layout.data, found.layout.cut, found.layout.expert_parallel) == (data, tensor, True)
    assert found.layout.num_ranks == 16


@dataclass(frozen=True, kw_only=True)
class Published:
    """A measured deployment; the source is in docs/guides/experts.md."""

    nodes: str
    split: AskedSplit
    users: int
    prompt_tokens: int
    output_tokens: int
    itl_ms: float
    tokens_per_s: float


PUBLISHED = {
    "16 H100, tensor 16, one request": Published(
        nodes=NODES, split=AskedSplit(tensor=16, data=1, expert_parallel=False), users=1, prompt_tokens=128,
        output_tokens=1024, itl_ms=23.2, tokens_per_s=43.1,
    ),
    "8 H200, tensor 8, 64 requests": Published(
        nodes="8xH200", split=AskedSplit(tensor=8, data=1, expert_parallel=False), users=64, prompt_tokens=1024,
        output_tokens=1024, itl_ms=34.6, tokens_per_s=8 * 223.6,
    ),
    "8 H200, data 8, 1000 short requests": Published(
        nodes="8xH200", split=AskedSplit(tensor=1, data=8, expert_parallel=False), users=1000, prompt_tokens=229,
        output_tokens=196, itl_ms=304.7, tokens_per_s=7143.3 * 196 / (229 + 196),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_figures_are_near_those_of_published_deployments(name: str) -> None:
    told = PUBLISHED[name]
    demand = Demand(users=told.users, prompt_tokens=told.prompt_tokens, output_tokens=told.output_tokens)
    found = forecast(told.nodes, "DeepSeek-R1", "sglang", told.split, demand)
    assert 0.4 < found.tokens_per_s / told.tokens_per_s < 2.5
    assert 0.4 < found.prediction.itl_s.value * 1e3 / told.itl_ms < 2.5


def decided_on_gpus(split: str) -> Decided:
    entry = f"source: hf:catalog/DeepSeek-V3, name: tiny, split: {split}, replicas: 1, load: {{users: 256}}"
    return decided(f"models: [{{{entry}}}]", nodes(2), accelerators="NVIDIA H200")


def test_auto_divides_requests_and_experts_where_that_is_best() -> None:
    found = decided_on_gpus("auto")
    ranks = found.fleet.models[0].ranks
    assert (ranks.count, ranks.data, ranks.expert) == (8, 8, True)
    assert "best of" in found.reasons["tiny"]


def test_parts_of_a_split_that_are_written_are_held() -> None:
    ranks = decided_on_gpus("{tensor: auto, data: 2, expert: true}").fleet.models[0].ranks
    assert (ranks.data, ranks.expert) == (2, True)
    whole = decided_on_gpus("{tensor: auto, pipeline: auto}").fleet.models[0].ranks
    assert (whole.data, whole.expert) == (1, False)


def test_auto_divides_neither_on_processors() -> None:
    on = tuple(replace(one, num_gpus=0) for one in nodes(2))
    found = decided("models: [{source: builtin:tiny-moe, name: tiny, split: auto, replicas: 1}]", on)
    ranks = found.fleet.models[0].ranks
    assert (ranks.data, ranks.expert) == (1, False)


def test_plan_says_what_it_assumes_of_speculation() -> None:
    on = tuple(replace(one, num_gpus=0) for one in nodes(1))
    found = decided("models: [{source: builtin:tiny, speculative: {method: ngram}}]", on)
    assert any("1 to 4 tokens, 1 is assumed" in note for note in found.notes["tiny"])
