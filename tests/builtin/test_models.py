"""Tests of names, descriptions and folders of the built-in models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from longboat.builtin import describe, ensure, is_builtin
from longboat.core.errors import UserInputError

MAX_PACKAGED_BYTES = 10_000_000


def test_builtin_source_is_told_by_its_prefix() -> None:
    assert is_builtin("builtin:tiny")
    assert is_builtin("builtin:no-such-model")
    assert not is_builtin("/models/tiny")
    assert not is_builtin("hf:builtin/tiny")


def test_tiny_fits_into_the_package() -> None:
    folder = ensure("builtin:tiny", Path("/nonexistent"))
    assert sum(file.stat().st_size for file in folder.iterdir()) < MAX_PACKAGED_BYTES


def test_tiny_describes_its_weights() -> None:
    model = describe("builtin:tiny")
    assert 0 < model.weight_bytes < MAX_PACKAGED_BYTES
    assert model.num_parameters == model.weight_bytes // 2
    assert model.config["architectures"] == ["Qwen3ForCausalLM"]


def test_tiny_divides_for_tensor_and_pipeline_parallel() -> None:
    config = describe("builtin:tiny").config
    for divisor in (2, 4):
        assert config["num_attention_heads"] % divisor == 0
        assert config["num_key_value_heads"] % divisor == 0
        assert config["num_hidden_layers"] % divisor == 0
        assert config["vocab_size"] % divisor == 0
        assert config["intermediate_size"] % divisor == 0


def test_tiny_ends_its_turns_and_its_texts() -> None:
    folder = ensure("builtin:tiny", Path("/nonexistent"))
    tokens = {
        token["content"]: token["id"] for token in json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    }
    settings = json.loads((folder / "generation_config.json").read_text())
    assert settings["eos_token_id"] == [tokens["<|im_end|>"], tokens["<|endoftext|>"]]


@pytest.mark.parametrize("source", ["builtin:tiny", "builtin:random-8b"])
def test_describe_gives_what_a_planner_needs(source: str) -> None:
    config = describe(source).config
    for key in ("attention_heads", "key_value_heads", "hidden_layers"):
        assert isinstance(config[f"num_{key}"], int)
    for key in ("head_dim", "hidden_size", "vocab_size", "max_position_embeddings"):
        assert isinstance(config[key], int)
    assert config["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("builtin:random-100m", "random-100m"),
        ("builtin:random-300m", "random-250m"),
        ("builtin:random-0.5b", "random-500m"),
        ("builtin:random-10m-seed7", "random-10m-seed7"),
        ("builtin:random-10m-seed0", "random-10m"),
    ],
)
def test_random_size_stands_for_the_nearest_shape(source: str, name: str) -> None:
    assert describe(source).name == name


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("builtin:tyni", "did you mean builtin:tiny?"),
        ("builtin:Tiny", "did you mean builtin:tiny?"),
        ("builtin:randm-100m", "did you mean builtin:random-100m?"),
        ("builtin:random-100", "did you mean builtin:random-100m?"),
        ("builtin:random-70b", "from 1m to 10b"),
        ("builtin:", "builtin:tiny"),
    ],
)
def test_unknown_name_is_refused_with_the_nearest_one(source: str, hint: str) -> None:
    with pytest.raises(UserInputError) as caught:
        describe(source)
    assert hint in caught.value.hint


def test_unknown_name_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserInputError):
        ensure("builtin:random-1t", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["tiny-embed", "tiny-rerank", "tiny-classify", "tiny-vision", "tiny-audio"])
def test_small_models_are_written_once_and_always_alike(name: str, tmp_path: Path) -> None:
    one, other = (ensure(f"builtin:{name}", tmp_path / place) for place in ("one", "other"))
    assert one.name == other.name
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    assert json.loads((one / "config.json").read_text()) == describe(f"builtin:{name}").config
    assert ensure(f"builtin:{name}", tmp_path / "one") == one
