"""The bytes of a smaller model that proposes tokens, beside those of the model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.cluster.preflight.knowledge import built_in_basis, with_knowledge
from longboat.planner.fleet.inputs import PlannerInputs
from longboat.planner.memory.draft import draft_bytes, draft_cache_bytes, eagle_draft, mtp_draft
from longboat.planner.memory.fit import Fit, plan_fit
from longboat.planner.memory.split_shape import Load, Split, card_of, even_stages
from longboat.spec.files.load import load_fleet

LIBRARY = built_in_library()
MODEL, DRAFT = (shape_of_entry(LIBRARY.models[name]) for name in ("Qwen3-8B", "Qwen3-0.6B"))
CARD = card_of(LIBRARY.accelerators.find("A100 SXM 40GB"))
LOAD = Load(context_tokens=4096)


def fit(tensor: int = 1, pipeline: int = 1, *, load: Load = LOAD) -> Fit:
    split = Split(tensor=tensor, stages=even_stages(len(MODEL.layers), pipeline))
    return plan_fit(MODEL, [CARD] * split.num_ranks, split, load)


def test_weights_and_cache_of_the_draft_are_counted() -> None:
    plain, with_draft = fit(), fit(load=replace(LOAD, draft=DRAFT))
    taken = with_draft.ranks[0].overhead["draft model"]
    assert taken == pytest.approx(2 * DRAFT.num_params, rel=0.01)
    assert plain.ranks[0].room_bytes - with_draft.ranks[0].room_bytes == taken
    each_plain, each = (one.ranks[0].sequence_bytes / 4096 for one in (plain, with_draft))
    # 28 layers, keys and values, 8 heads of 128 numbers of 2 bytes
    assert each - each_plain == 28 * 2 * 8 * 128 * 2 == draft_cache_bytes(with_draft.split, with_draft.load)
    assert with_draft.num_kv_tokens == pytest.approx(with_draft.ranks[0].room_bytes / each, rel=0.001)
    assert "draft model" not in plain.ranks[0].overhead


def test_tensor_parallelism_divides_the_draft_too() -> None:
    one, two = (fit(tensor, load=replace(LOAD, draft=DRAFT)) for tensor in (1, 2))
    assert two.ranks[0].overhead["draft model"] == pytest.approx(one.ranks[0].overhead["draft model"] / 2, rel=0.01)


def test_only_the_last_stage_holds_it() -> None:
    first, last = fit(pipeline=2, load=replace(LOAD, draft=DRAFT)).ranks
    plain_first, plain_last = fit(pipeline=2).ranks
    assert "draft model" not in first.overhead
    assert first.sequence_bytes == plain_first.sequence_bytes
    assert last.overhead["draft model"] > 1e9
    assert last.sequence_bytes > plain_last.sequence_bytes


def test_a_draft_that_cannot_be_divided_as_its_model_is_refused() -> None:
    assert fit(16, load=replace(LOAD, draft=DRAFT)).fits
    assert fit(32).fits  # it has 32 heads, the draft 16
    refused = fit(32, load=replace(LOAD, draft=DRAFT))
    assert refused.shortage is not None
    assert refused.shortage.what.startswith("the draft model Qwen3-0.6B: ")


def knowledge(method: str, model: str = "", source: str = "hf:Qwen/Qwen3-8B") -> PlannerInputs:
    told = f"{{method: {method}, model: '{model}'}}" if model else f"{{method: {method}}}"
    fleet = load_fleet(f"models: [{{name: m, source: {source}, speculative: {told}}}]", "f")
    return with_knowledge(PlannerInputs(), fleet, {}, built_in_basis())


def test_the_draft_of_a_fleet_file_is_looked_up() -> None:
    known = knowledge("draft", "hf:Qwen/Qwen3-0.6B")
    assert known.drafts["m"].num_params == DRAFT.num_params
    assert known.memory["m"].unknown == ()
    for told in (knowledge("draft", "hf:nobody/nothing"), knowledge("eagle3", "hf:nobody/nothing")):
        assert not told.drafts
        assert told.memory["m"].unknown == ("--speculative-config",)
    assert knowledge("ngram").memory["m"].unknown == ()


V3 = shape_of_entry(LIBRARY.models["DeepSeek-V3"])
H200 = card_of(LIBRARY.accelerators.find("H200"))


def mtp_bytes(split: Split) -> int:
    return draft_bytes(H200, split, replace(LOAD, draft=mtp_draft(V3)))


def test_mtp_layers_are_counted_without_what_they_share_with_their_model() -> None:
    layers = mtp_draft(V3)
    assert layers is not None
    (layer,) = layers.layers
    assert layer.num_params == pytest.approx(11.5e9, rel=0.015)  # README_WEIGHTS.md of DeepSeek-V3: "unique parameters"
    split = Split(tensor=8, stages=(61,))
    assert draft_cache_bytes(split, replace(LOAD, draft=layers)) == 576 * 2  # one more layer of latent attention
    assert mtp_draft(MODEL) is None


def test_ranks_divide_the_experts_of_mtp_layers_as_those_of_their_model() -> None:
    experts = 3 * 256 * 7168 * 2048
    for split in (Split(tensor=8, stages=(61,)), Split(tensor=8, stages=(61,), expert_parallel=True, data=8)):
        rest = mtp_bytes(split) - experts / 8
        assert 0 < rest < 0.5e9


def test_mtp_layers_of_a_pipeline_have_an_embedding_of_their_own() -> None:
    alone, behind = (mtp_bytes(Split(tensor=8, stages=stages)) for stages in ((61,), (30, 31)))
    assert behind - alone == pytest.approx(129_280 * 7168 * 2 / 8, rel=0.001)


def test_mtp_of_a_fleet_file_is_counted_where_the_model_has_such_layers() -> None:
    assert knowledge("mtp").memory["m"].unknown == ("--speculative-config",)
    known = knowledge("mtp", source="hf:deepseek-ai/DeepSeek-V3-0324")
    assert known.drafts["m"] == mtp_draft(V3)
    assert known.memory["m"].unknown == ()


LLAMA = shape_of_entry(LIBRARY.models["Llama-3.1-8B"])
HEAD = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "vocab_size": 128_256,
    "tie_word_embeddings": False,
}


LAYER = 2 * 4096 * 4096 + 2 * 1024 * 4096 + 3 * 14_336 * 4096
"""Numbers of a layer of Llama-3.1-8B, without its norms."""


@pytest.mark.parametrize(
    ("config", "states", "num_params"),
    [
        (HEAD, 1, LAYER + 2 * 4096 * 4096),  # 0.25B, as EAGLE's README says
        # queries, keys and values of twice the width; three states are joined; an output head of fewer tokens
        (
            {**HEAD, "draft_vocab_size": 32_000},
            3,
            LAYER + (4096 + 2 * 1024) * 4096 + 3 * 4096 * 4096 + 32_000 * 4096,
        ),
    ],
)
def test_heads_of_eagle_take_what_the_classes_of_vllm_hold(
    config: dict[str, object], states: int, num_params: int
) -> None:
    head = eagle_draft(shape_from_config(config, name="head"), LLAMA, states=states)
    alone, behind = (
        draft_bytes(H200, Split(tensor=1, stages=stages), replace(LOAD, draft=head)) for stages in ((32,), (16, 16))
    )
    assert alone == pytest.approx(2 * num_params, rel=0.001)
    assert behind - alone == 128_256 * 4096 * 2  # an embedding of its own, since the model's is on another rank
    assert draft_cache_bytes(Split(tensor=1, stages=(32,)), replace(LOAD, draft=head)) == 2 * 8 * 128 * 2


def test_a_head_of_eagle_in_a_fleet_file_is_counted() -> None:
    for method in ("eagle", "eagle3"):
        known = knowledge(method, "hf:Qwen/Qwen3-0.6B")  # any model with a config.json
        assert known.drafts["m"].layers[0].weights[0].name == "fc"
        assert known.memory["m"].unknown == ()
