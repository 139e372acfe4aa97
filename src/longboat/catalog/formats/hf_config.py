"""Reads a model's config.json (the Hugging Face layout) into ModelConfig.

Names of fields and rules follow vLLM 0.32 (``transformers_utils/model_arch_config_convertor.py``, ``config/model.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from longboat.catalog.formats.config_fields import EXPERT_FIELDS, Fields
from longboat.catalog.formats.model_facts import ModelConfig
from longboat.core.errors import UserInputError

__all__ = ("facts_from_config", "parse_config", "read_config", "text_section")

# Sections in which multimodal models keep their language model.
TEXT_SECTIONS = ("text_config", "llm_config", "language_config", "thinker_config")
POSITION_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
)
KV_HEAD_FIELDS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
EXPERTS_PER_TOKEN_FIELDS = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k")
LAYER_LISTS = ("layers_block_type", "hybrid_override_pattern", "block_configs", "layer_types")
# Rope types whose config has the scaled length already.
ALREADY_SCALED = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
MAX_NESTING = 3

Config = Mapping[str, object]


def read_config(text: str, origin: str) -> ModelConfig:
    """Return the settings in the text of a config.json. ``origin`` names it in messages.

    Raises UserInputError where the text is not a JSON object.
    """
    return facts_from_config(parse_config(text, origin))


def parse_config(text: str, origin: str) -> dict[str, object]:
    """Return the object in the text of a config.json. Raises UserInputError, naming ``origin``, if malformed."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserInputError(f"{origin} is not JSON: {error}", hint="is the model's download complete?") from None
    if not isinstance(config, dict):
        raise UserInputError(
            f"{origin} is not a JSON object", hint="is it the right file? The config.json of a model is an object"
        )
    return config


def facts_from_config(config: Config) -> ModelConfig:
    """Return the settings in a parsed config.json; a field of the wrong type counts as absent."""
    whole, text = Fields(config), Fields(text_section(config))
    num_heads = text.count("num_attention_heads", "n_head") or None
    hidden_size = text.count("hidden_size", "n_embd", "d_model") or None
    names = whole.words("architectures") or text.words("architectures")
    return ModelConfig(
        model_type=whole.word("model_type"),
        architecture=names[0] if names else "",
        num_layers=_num_layers(text),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(text, num_heads),
        head_dim=text.count("head_dim") or (hidden_size // num_heads if hidden_size and num_heads else None),
        vocab_size=text.count("vocab_size") or None,
        max_position_tokens=_max_position_tokens(text) or None,
        dtype=_dtype(whole, text),
        quantization=_quantization(whole, text),
        num_experts=text.count(*EXPERT_FIELDS),
        num_experts_per_token=text.count(*EXPERTS_PER_TOKEN_FIELDS),
        intermediate_size=text.count("intermediate_size", "ffn_dim", "n_inner") or None,
        moe_intermediate_size=text.count("moe_intermediate_size", "expert_intermediate_size") or None,
        kv_lora_rank=text.count("kv_lora_rank") or None,
        multimodal=text.values is not config,
    )


def text_section(config: Config) -> Config:
    """Return the section that describes the language model: ``config`` itself where there is no inner one."""
    for _ in range(MAX_NESTING):
        inner = Fields(config).section(*TEXT_SECTIONS)
        if not inner:
            break
        config = inner.values
    return config


def _num_layers(text: Fields) -> int | None:
    if count := text.count("num_hidden_layers", "n_layer", "num_layers"):
        return count
    lists = (value for name in LAYER_LISTS if isinstance(value := text.values.get(name), list | str) and value)
    return next((len(value) for value in lists), None)


def _num_kv_heads(text: Fields, num_heads: int | None) -> int | None:
    if count := text.count(*KV_HEAD_FIELDS):
        return count
    return None if isinstance(text.values.get("block_configs"), list) else num_heads


def _max_position_tokens(text: Fields) -> int:
    lengths = [length for name in POSITION_FIELDS if (length := text.count(name))]
    allowed = text.count("model_max_length")
    if not lengths:
        return allowed
    factors = [factor for rope in _ropes(text) if (factor := _rope_factor(rope)) is not None]
    scaled = bool(factors) and "gemma3" not in text.word("model_type")
    return max(int(min(lengths) * factors[-1]) if scaled else min(lengths), allowed)


def _ropes(text: Fields) -> Iterator[Fields]:
    """Yield the rope settings: one, or one for each type of layer."""
    rope = text.section("rope_parameters") or text.section("rope_scaling")
    nested = [Fields(value) for value in rope.values.values() if isinstance(value, dict)]
    yield from nested or [rope]


def _rope_factor(rope: Fields) -> float | None:
    kind = rope.word("rope_type", "type") or "default"
    factor = rope.number("factor")
    return factor if kind not in ALREADY_SCALED and 1 <= factor < 1e6 else None


def _dtype(whole: Fields, text: Fields) -> str | None:
    found = whole.word("dtype", "torch_dtype") or text.word("dtype", "torch_dtype")
    return found.removeprefix("torch.") or None


def _quantization(whole: Fields, text: Fields) -> str | None:
    for section in (whole, text):
        for name in ("quantization_config", "compression_config"):
            if isinstance(section.values.get(name), dict):
                return (section.section(name).word("quant_method", "quant_algo") or "unknown").lower()
    return None
