"""Lists the built-in models, describes them, and returns their folders."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from longboat.builtin.gguf_file import ensure_gguf
from longboat.builtin.random_folder import ensure_random
from longboat.builtin.safetensors_file import data_bytes
from longboat.builtin.shapes import SHAPES, TINY_MOE, Shape, nearest_shape, parse_size
from longboat.builtin.small_models import SMALL, ensure_small
from longboat.core.errors import UserInputError

__all__ = ("BuiltinModel", "describe", "ensure", "ensure_as_gguf", "is_builtin", "names")

PREFIX = "builtin:"
TINY = Path(__file__).parent / "tiny"
RANDOM_MAX_POSITIONS = 32_768
GGUF_RECIPE = b"1"
"""Changes when a GGUF file of the same model is written differently."""
_RANDOM = re.compile(r"random-(?P<size>[^-]+)(?:-seed(?P<seed>\d{1,9}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinModel:
    """A built-in model, described without writing anything."""

    name: str  # folder name: ``tiny``, ``tiny-moe`` or ``random-100m`` (``random-100m-seed7``)
    config: Mapping[str, Any] = field(repr=False)  # content of config.json
    weight_bytes: int  # bytes of the weights as stored (bfloat16)
    shape: Shape | None = None  # of a random model
    seed: int = 0  # of the random weights

    @property
    def num_parameters(self) -> int:
        return self.weight_bytes // 2


def is_builtin(source: str) -> bool:
    """Return whether a model's source names a built-in model, known or not."""
    return source.startswith(PREFIX)


def names() -> tuple[str, ...]:
    """Return the models of the table, without the prefix; other sizes of random models map to one of them."""
    return ("tiny", "tiny-moe", *SMALL, *(f"random-{size}" for size in SHAPES))


def describe(source: str) -> BuiltinModel:
    """Describe ``builtin:tiny``, another small one, or ``builtin:random-<size>[-seed<number>]``; writes nothing.

    A size that is not in the table means the nearest one by ratio: ``random-300m`` is ``random-250m``.
    Raises UserInputError for an unknown name or size, with the nearest name as the hint.
    """
    name = source.removeprefix(PREFIX)
    if name == "tiny":
        return _describe_tiny()
    if name == "tiny-moe":
        return _described(name, TINY_MOE, _expert_config(TINY_MOE), 0)
    if name in SMALL:
        return BuiltinModel(name=name, config=SMALL[name].config, weight_bytes=data_bytes(SMALL[name].tensors))
    match = _RANDOM.fullmatch(name)
    num_parameters = parse_size(match["size"]) if match else None
    if match is None or num_parameters is None:
        raise _unknown(name)
    return _describe_random(num_parameters, int(match["seed"] or 0))


def ensure(source: str, home: Path) -> Path:
    """Return the folder for the engine: inside the package for ``tiny``, else under ``home/models``, written if
    missing.

    Several processes may call this at the same time; one writes and the others wait for it. Raises UserInputError as
    ``describe`` does, ClusterError where the disk is full or another process takes too long.
    """
    model = describe(source)
    if model.name in SMALL:
        return ensure_small(SMALL[model.name], home / "models", tokenizer_from=TINY)
    if model.shape is None:
        return TINY
    return ensure_random(home / "models", model.name, model.shape, model.config, model.seed, tokenizer_from=TINY)


def ensure_as_gguf(source: str, home: Path) -> Path:
    """Return the model as one GGUF file under ``home/models``, written if missing; raises as ``ensure`` does.

    Raises UserInputError for a mixture of experts too.
    """
    if (shape := describe(source).shape) is not None and shape.num_experts:
        raise UserInputError(f"{source} has no GGUF file", hint=f"write source: {PREFIX}tiny, or engine: vllm")
    folder = ensure(source, home)
    digest = hashlib.sha256((folder / "config.json").read_bytes() + GGUF_RECIPE).hexdigest()[:12]
    return ensure_gguf(folder, home / "models" / f"{describe(source).name}-{digest}.gguf")


def _describe_tiny() -> BuiltinModel:
    with (TINY / "model.safetensors").open("rb") as file:
        header_bytes = 8 + int.from_bytes(file.read(8), "little")
        weight_bytes = file.seek(0, 2) - header_bytes
    return BuiltinModel(name="tiny", config=_tiny_config(), weight_bytes=weight_bytes)


def _tiny_config() -> dict[str, Any]:
    return cast("dict[str, Any]", json.loads((TINY / "config.json").read_text(encoding="utf-8")))


def _describe_random(num_parameters: int, seed: int) -> BuiltinModel:
    size, shape = nearest_shape(num_parameters)
    return _described(f"random-{size}" + (f"-seed{seed}" if seed else ""), shape, _random_config(shape), seed)


def _described(name: str, shape: Shape, config: dict[str, Any], seed: int) -> BuiltinModel:
    return BuiltinModel(
        name=name,
        config=config,
        weight_bytes=data_bytes(shape.tensors(config["vocab_size"])),
        shape=shape,
        seed=seed,
    )


def _random_config(shape: Shape) -> dict[str, Any]:
    """Return the tiny model's config (vocabulary, end tokens, …) with another shape."""
    return _tiny_config() | {
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "head_dim": shape.head_dim,
        "layer_types": ["full_attention"] * shape.num_layers,
        "max_window_layers": shape.num_layers,
        "max_position_embeddings": RANDOM_MAX_POSITIONS,
    }


def _expert_config(shape: Shape) -> dict[str, Any]:
    """Return the config of a mixture of experts; each token goes through two experts of each layer."""
    return _random_config(shape) | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "max_position_embeddings": _tiny_config()["max_position_embeddings"],
        "moe_intermediate_size": shape.intermediate_size,
        "num_experts": shape.num_experts,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    }


def _unknown(name: str) -> UserInputError:
    nearest = difflib.get_close_matches(name.lower(), names(), n=1, cutoff=0.5)
    advice = f"did you mean {PREFIX}{nearest[0]}? " if nearest else ""
    return UserInputError(
        f"there is no built-in model {name!r}",
        hint=f"{advice}Use {PREFIX}tiny, {PREFIX}tiny-moe, or {PREFIX}random-SIZE with a size from 1m to 10b, such as "
        "random-100m.",
    )
