"""Which splits and lengths a model's shape allows."""

from __future__ import annotations

import dataclasses

import pytest
from planner_builders import TINY, model

from longboat.catalog.formats.model_facts import ModelConfig
from longboat.planner.fleet.split import check_split, tensor_degrees


def change(**fields: object) -> ModelConfig:
    return dataclasses.replace(TINY, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "tensor", "words", "hint"),
    [
        (TINY, 3, "8 attention heads are not divisible by tensor 3", "write 2 or 4"),
        (TINY, 16, "8 attention heads are not divisible by tensor 16", "write 8"),
        (
            change(num_heads=12, num_kv_heads=3, intermediate_size=None, vocab_size=None),
            2,
            "3 key-value heads and tensor 2 do not divide each other",
            "write 1 or 3",
        ),
        (change(num_heads=12, num_kv_heads=12, vocab_size=4096), 3, "the MLP's width of 512", "write 2 or 4"),
        (change(num_heads=12, num_kv_heads=12, intermediate_size=None), 3, "the vocabulary of 4096", "write 2 or 4"),
        (change(num_experts=8, moe_intermediate_size=6), 4, "an expert's width of 6", "write 2"),
    ],
)
def test_tensor_that_does_not_divide_the_model_is_refused(
    facts: ModelConfig, tensor: int, words: str, hint: str
) -> None:
    (problem,) = check_split(model(split={"tensor": tensor}), facts)
    assert problem.where == "split.tensor"
    assert words in problem.what
    assert problem.hint == hint


def test_experts_that_are_divided_by_copies_are_not_cut() -> None:
    facts = change(num_experts=8, moe_intermediate_size=6)
    assert check_split(model(split={"tensor": 4, "expert": True}), facts) == ()


def test_key_value_heads_are_copied_where_there_are_more_ranks() -> None:
    facts = change(num_kv_heads=2)
    assert tensor_degrees(facts) == [1, 2, 4, 8]
    assert tensor_degrees(change(num_heads=12, num_kv_heads=4, intermediate_size=None, vocab_size=None)) == [
        1,
        2,
        4,
        12,
    ]


def test_latent_attention_has_no_key_value_heads_to_divide() -> None:
    assert 4 in tensor_degrees(change(num_kv_heads=3, kv_lora_rank=512))
    assert 4 not in tensor_degrees(change(num_kv_heads=3))


def test_vocabulary_is_padded_before_it_is_divided() -> None:
    assert tensor_degrees(change(vocab_size=4095)) == [1, 2, 4, 8]


def test_more_stages_than_layers_are_refused() -> None:
    (problem,) = check_split(model(split={"pipeline": 5}), TINY)
    assert (problem.where, problem.hint) == ("split.pipeline", "write at most 4")
    assert "5 stages are more than the model's 4 layers" in problem.what


def test_longer_context_than_the_model_has_is_refused() -> None:
    (problem,) = check_split(model(context=4096), TINY)
    assert (problem.where, problem.hint) == ("context", "write at most 2048, or leave it out")
    assert not check_split(model(context=2048), TINY)


def test_all_mistakes_of_a_split_are_reported_together() -> None:
    found = check_split(model(split={"tensor": 3, "pipeline": 9}, context=10_000), TINY)
    assert [problem.where for problem in found] == ["split.tensor", "split.pipeline", "context"]


def test_fake_engine_and_unknown_models_can_be_split_at_will() -> None:
    assert not check_split(model(engine="fake", split={"tensor": 3}), TINY)
    assert not check_split(model(split={"tensor": 3}), None)
    assert not check_split(model(split={"tensor": 3}), ModelConfig())


def test_layers_of_stages_add_up_to_the_models() -> None:
    assert not check_split(model(split={"pipeline": 2, "layers": [3, 1]}), TINY)
    (problem,) = check_split(model(split={"pipeline": 2, "layers": [3, 2]}), TINY)
    assert problem.where == "split.layers"
    assert problem.what == "3 + 2 are 5 layers, the model has 4"
