"""What planning does otherwise for models that generate nothing."""

from __future__ import annotations

import dataclasses

import pytest

from longboat.catalog.formats.model_facts import ModelConfig
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.core.plan import EngineMemory
from longboat.core.wanted import WantedLoad, WantedModel
from longboat.planner.fleet.choose import ASSUMED_IMAGE_TOKENS, demand_of
from longboat.planner.search.tasks import shape_for, task_problems, task_reason

EMBED = WantedModel(name="e", source="/m", task="embed")
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "tie_word_embeddings": False,
}
SHAPE = shape_from_config(CONFIG)


def test_the_head_that_makes_tokens_is_not_loaded() -> None:
    assert SHAPE.num_params - shape_for(EMBED, SHAPE).num_params == 128 * 4096
    assert shape_for(dataclasses.replace(EMBED, task="generate"), SHAPE) is SHAPE


def test_no_token_follows_a_text() -> None:
    assert demand_of(EMBED, SHAPE, EngineMemory()).output_tokens == 1
    assert demand_of(dataclasses.replace(EMBED, task="generate"), SHAPE, EngineMemory()).output_tokens == 256


def test_images_add_to_the_prompt() -> None:
    model = WantedModel(name="v", source="/m", load=WantedLoad(prompt_tokens=100, images=2))
    assert demand_of(model, SHAPE, EngineMemory()).prompt_tokens == 100 + 2 * ASSUMED_IMAGE_TOKENS
    known = dataclasses.replace(SHAPE, image_tokens=576)
    assert demand_of(model, known, EngineMemory()).prompt_tokens == 100 + 2 * 576


@pytest.mark.parametrize(
    ("architecture", "is_refused"), [("BertForSequenceClassification", True), ("BertModel", False)]
)
def test_a_class_that_cannot_do_it_is_refused(architecture: str, is_refused: bool) -> None:
    facts = ModelConfig(architecture=architecture)
    found = task_problems(EMBED, facts)
    assert [problem.where for problem in found] == (["task"] if is_refused else [])
    assert task_problems(dataclasses.replace(EMBED, engine="fake"), facts) == ()
    assert task_problems(EMBED, None) == ()


def test_the_plan_says_how_a_task_is_served() -> None:
    assert "converted" in task_reason(EMBED, ModelConfig(architecture="Qwen3ForCausalLM"))
    assert task_reason(EMBED, None) == "task embed"
    assert task_reason(dataclasses.replace(EMBED, task="generate"), None) == ""
