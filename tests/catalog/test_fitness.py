"""What a model's class is made for, and what it is refused for."""

from __future__ import annotations

import pytest

from longboat.catalog.families.fitness import fitness_for
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.core.tasks import Task

CLASSES = "BertForSequenceClassification"


@pytest.mark.parametrize(
    ("architecture", "task"),
    [
        ("Qwen3ForCausalLM", "generate"),
        ("Qwen3ForCausalLM", "embed"),
        ("BertModel", "embed"),
        (CLASSES, "rerank"),
        (CLASSES, "classify"),
        ("Qwen2ForRewardModel", "reward"),
        ("ChatGLMModel", "generate"),
        ("", "rerank"),
    ],
)
def test_a_fitting_class_is_taken(architecture: str, task: Task) -> None:
    assert fitness_for(architecture, task).problem == ""


@pytest.mark.parametrize(
    ("architecture", "task", "hint"),
    [
        ("BertModel", "generate", "task: embed"),
        (CLASSES, "generate", "task: classify"),
        ("Qwen2ForRewardModel", "generate", "task: reward"),
        (CLASSES, "embed", "task: classify"),
        ("Qwen3ForCausalLM", "rerank", "task: embed"),
        ("BertModel", "classify", "task: embed"),
        ("MoshiForCausalLM", "generate", "another model"),
        ("HrmTextForCausalLM", "generate", "another model"),
    ],
)
def test_another_class_is_refused_with_a_way_out(architecture: str, task: Task, hint: str) -> None:
    found = fitness_for(architecture, task)
    assert found.problem.startswith(architecture)
    assert hint in found.hint


def test_arguments_that_replace_the_class_are_trusted() -> None:
    assert fitness_for("Qwen3ForCausalLM", "rerank", overridden=True).problem == ""


def test_an_encoder_is_counted_and_keeps_no_tokens() -> None:
    """The published BERT base, uncased, has 109.48 million parameters."""
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "type_vocab_size": 2,
        "vocab_size": 30522,
        "tie_word_embeddings": True,
    }
    shape = shape_from_config(config)
    assert shape.num_params == pytest.approx(109_482_240, rel=1e-3)
    assert {layer.cache.kind for layer in shape.layers} == {"none"}
    assert not [doubt for doubt in shape.estimate if "architecture" in doubt]
