"""LoRA adapters read from their files: facts, revisions, what cannot be used, and what does not fit a model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from adapter_files import TINY_MODULES, write_adapter
from longboat.builtin import describe
from longboat.catalog.read_adapter import adapter_revision, read_adapter_folder
from longboat.catalog.readers.adapter import misfit, read_adapter
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.catalog.shape.tensors import Tensor
from longboat.core.errors import UserInputError

TINY = shape_from_config(describe("builtin:tiny").config, name="tiny")
CONFIG = json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]})
START = "base_model.model.model.layers.0.self_attn.q_proj"
PAIR = (
    Tensor(name=f"{START}.lora_A.weight", shape=(4, 128), num_bytes=2048),
    Tensor(name=f"{START}.lora_B.weight", shape=(256, 4), num_bytes=4096),
)


def test_facts_of_an_adapter(tmp_path: Path) -> None:
    facts = read_adapter_folder(write_adapter(tmp_path / "one", 1, rank=8))
    assert (facts.rank, facts.base, facts.modules) == (8, "builtin:tiny", tuple(sorted(TINY_MODULES)))
    assert facts.num_bytes == 4 * 4 * 8 * sum(a + b for a, b in TINY_MODULES.values())
    assert misfit(facts, TINY) == ""


def test_a_revision_follows_from_every_byte(tmp_path: Path) -> None:
    one, same, other = (write_adapter(tmp_path / name, seed) for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert adapter_revision(one) == adapter_revision(same) != adapter_revision(other)
    (same / "adapter_config.json").write_text((same / "adapter_config.json").read_text() + "\n")
    assert adapter_revision(one) != adapter_revision(same)
    (one / "README.md").write_text("words change nothing")
    assert read_adapter_folder(one).revision == adapter_revision(one)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights=pissa"),
        ({"peft_type": "IA3"}, "of the kind IA3"),
        ({"r": 0}, "r is 0"),
        ({"r": True}, "r is True"),
        ({"r": "8"}, "r is '8'"),
    ],
)
def test_features_that_engines_lack_are_refused(tmp_path: Path, config: dict[str, object], words: str) -> None:
    with pytest.raises(UserInputError, match=words):
        read_adapter_folder(write_adapter(tmp_path, 1, config=config))


@pytest.mark.parametrize("start", [True, False, "gaussian", "EVA", "lora_ga"])
def test_ways_to_begin_training_that_leave_the_model_alone_are_fine(tmp_path: Path, start: object) -> None:
    assert read_adapter_folder(write_adapter(tmp_path, 1, config={"init_lora_weights": start})).rank == 4


@pytest.mark.parametrize(
    ("config", "tensors", "words"),
    [
        ("{", PAIR, "is not JSON"),
        ("[]", PAIR, "not a JSON object"),
        (CONFIG, (), "holds no LoRA weights"),
        (CONFIG, PAIR[:1], "only one half"),
        (CONFIG, (*PAIR, Tensor(name="model.embed_tokens.weight", shape=(9, 9), num_bytes=1)), "not half of a LoRA"),
        (CONFIG, (PAIR[0], Tensor(name=PAIR[1].name, shape=(256, 8), num_bytes=1)), "do not fit each other"),
        (CONFIG, (PAIR[0], Tensor(name=PAIR[1].name, shape=(256,), num_bytes=1)), "do not fit each other"),
    ],
)
def test_malformed_adapters_are_refused(config: str, tensors: tuple[Tensor, ...], words: str) -> None:
    with pytest.raises(UserInputError, match=words):
        read_adapter(config, tensors, "/a")


def test_the_rank_is_that_of_the_widest_matrix() -> None:
    wide = (
        Tensor(name=PAIR[0].name.replace("q_proj", "v_proj"), shape=(32, 128), num_bytes=1),
        Tensor(name=PAIR[1].name.replace("q_proj", "v_proj"), shape=(128, 32), num_bytes=1),
    )
    assert read_adapter(CONFIG, (*PAIR, *wide), "/a").rank == 32


def test_names_without_the_prefix_and_with_an_adapter_name_are_read() -> None:
    plain = tuple(
        replace(tensor, name=tensor.name[len("base_model.model.") : -len("weight")] + "default.weight")
        for tensor in PAIR
    )
    (matrix,) = read_adapter(CONFIG, plain, "/a").matrices
    assert (matrix.module, matrix.layer, matrix.inputs, matrix.outputs) == ("self_attn.q_proj", 0, 128, 256)


@pytest.mark.parametrize(
    ("modules", "layers", "words"),
    [
        ({"self_attn.q_proj": (128, 512)}, 1, "is 512 x 128, the model's is 256 x 128"),
        ({"self_attn.q_proj": (64, 256)}, 1, "is 256 x 64, the model's is 256 x 128"),
        ({"self_attn.z_proj": (128, 128)}, 1, "self_attn.z_proj, which the model does not have"),
        ({"self_attn.q_proj": (128, 256)}, 5, "layer 4's self_attn.q_proj, and the model has 4 layers"),
    ],
)
def test_adapters_of_other_models_do_not_fit(
    tmp_path: Path, modules: dict[str, tuple[int, int]], layers: int, words: str
) -> None:
    facts = read_adapter_folder(write_adapter(tmp_path, 1, modules=modules, layers=layers))
    assert words in misfit(facts, TINY)


def test_matrices_that_a_shape_does_not_name_are_left_to_the_engine(tmp_path: Path) -> None:
    modules = {"mlp.experts.3.gate_proj": (128, 64), "linear_attn.in_proj": (128, 7)}
    assert misfit(read_adapter_folder(write_adapter(tmp_path, 1, modules=modules)), TINY) == ""


def test_folders_without_an_adapter_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="there is no folder"):
        read_adapter_folder(tmp_path / "none")
    with pytest.raises(UserInputError, match=r"has no adapter_config.json and no adapter_model.safetensors"):
        read_adapter_folder(tmp_path)
    write_adapter(tmp_path, 1)
    weights = tmp_path / "adapter_model.safetensors"
    whole = weights.read_bytes()
    for cut in (0, 4, 20, len(whole) - 1):
        weights.write_bytes(whole[:cut])
        with pytest.raises(UserInputError):
            read_adapter_folder(tmp_path)
    weights.write_bytes(whole)
    (tmp_path / "adapter_config.json").write_bytes(b"\xff\xfe{}")
    with pytest.raises(UserInputError, match="UTF-8"):
        read_adapter_folder(tmp_path)
