"""Reading a model's config.json (the Hugging Face layout) into ModelFacts.

Names of fields and rules follow vLLM 0.32 (``transformers_utils/model_arch_config_convertor.py``, ``config/model.py``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from longboat.catalog.formats.model_facts import ModelFacts
from longboat.core.errors import UserInputError

__all__ = ("facts_from_config", "parse_config", "read_config", "text_section")

# Multimodal models keep their language model in a section of its own.
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
EXPERT_FIELDS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
EXPERTS_PER_TOKEN_FIELDS = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_top_k")
LAYER_LISTS = ("layers_block_type", "hybrid_override_pattern", "block_configs", "layer_types")
# For these the config gives the scaled length already.
ALREADY_SCALED = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
MAX_NESTING = 3

Config = Mapping[str, object]


def read_config(text: str, origin: str) -> ModelFacts:
    """The facts in the text of a config.json. ``origin`` names it in messages.

    Raises UserInputError where the text is not a JSON object.
    """
    return facts_from_config(parse_config(text, origin))


def parse_config(text: str, origin: str) -> dict[str, object]:
    """The object in the text of a config.json. Raises UserInputError, naming ``origin``, where there is none."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserInputError(f"{origin} is not JSON: {error}", hint="is the model's download complete?") from None
    if not isinstance(config, dict):
        raise UserInputError(
            f"{origin} is not a JSON object", hint="config.json of a model is one: is it the right file?"
        )
    return config


def facts_from_config(config: Config) -> ModelFacts:
    """The facts in a parsed config.json; a field of the wrong type counts as absent."""
    text = text_section(config)
    num_heads = _count(text, "num_attention_heads", "n_head")
    hidden_size = _count(text, "hidden_size", "n_embd", "d_model")
    return ModelFacts(
        model_type=_word(config, "model_type") or "",
        architecture=_architecture(config, text),
        num_layers=_num_layers(text),
        hidden_size=hidden_size,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(text, num_heads),
        head_dim=_count(text, "head_dim") or (hidden_size // num_heads if hidden_size and num_heads else None),
        vocab_size=_count(text, "vocab_size"),
        max_position_tokens=_max_position_tokens(text),
        dtype=_dtype(config, text),
        quantization=_quantization(config, text),
        num_experts=_count(text, *EXPERT_FIELDS) or 0,
        num_experts_per_token=_count(text, *EXPERTS_PER_TOKEN_FIELDS) or 0,
        intermediate_size=_count(text, "intermediate_size", "ffn_dim", "n_inner"),
        moe_intermediate_size=_count(text, "moe_intermediate_size", "expert_intermediate_size"),
        kv_lora_rank=_count(text, "kv_lora_rank"),
        multimodal=text is not config,
    )


def text_section(config: Config) -> Config:
    """The section that describes the language model: ``config`` itself where there is no inner one."""
    for _ in range(MAX_NESTING):
        inner = next((section for name in TEXT_SECTIONS if (section := _section(config, name))), None)
        if inner is None:
            break
        config = inner
    return config


def _section(config: Config, name: str) -> dict[str, object] | None:
    value = config.get(name)
    return value if isinstance(value, dict) else None


def _count(config: Config, *names: str) -> int | None:
    """The first of the fields that holds a positive whole number."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _word(config: Config, *names: str) -> str | None:
    return next((value for name in names if isinstance(value := config.get(name), str) and value), None)


def _architecture(config: Config, text: Config) -> str:
    for section in (config, text):
        names = section.get("architectures")
        if isinstance(names, list) and names and isinstance(names[0], str):
            return names[0]
    return ""


def _num_layers(text: Config) -> int | None:
    if count := _count(text, "num_hidden_layers", "n_layer", "num_layers"):
        return count
    lists = (value for name in LAYER_LISTS if isinstance(value := text.get(name), list | str) and value)
    return next((len(value) for value in lists), None)


def _num_kv_heads(text: Config, num_heads: int | None) -> int | None:
    if count := _count(text, *KV_HEAD_FIELDS):
        return count
    return None if isinstance(text.get("block_configs"), list) else num_heads


def _max_position_tokens(text: Config) -> int | None:
    lengths = [length for name in POSITION_FIELDS if (length := _count(text, name))]
    allowed = _count(text, "model_max_length")
    if not lengths:
        return allowed
    factors = [factor for rope in _ropes(text) if (factor := _rope_factor(rope)) is not None]
    scaled = bool(factors) and "gemma3" not in (_word(text, "model_type") or "")
    return max(int(min(lengths) * factors[-1]) if scaled else min(lengths), allowed or 0)


def _ropes(text: Config) -> Iterator[Config]:
    """The rope settings: one, or one for each type of layer."""
    rope = _section(text, "rope_parameters") or _section(text, "rope_scaling") or {}
    nested = [value for value in rope.values() if isinstance(value, dict)]
    yield from nested or [rope]


def _rope_factor(rope: Config) -> float | None:
    kind = _word(rope, "rope_type", "type") or "default"
    factor = rope.get("factor")
    if kind in ALREADY_SCALED or isinstance(factor, bool) or not isinstance(factor, int | float):
        return None
    return float(factor) if 1 <= factor < 1e6 else None


def _dtype(config: Config, text: Config) -> str | None:
    found = _word(config, "dtype", "torch_dtype") or _word(text, "dtype", "torch_dtype")
    return found.removeprefix("torch.") if found else None


def _quantization(config: Config, text: Config) -> str | None:
    for section in (config, text):
        for name in ("quantization_config", "compression_config"):
            if (quantization := _section(section, name)) is not None:
                return (_word(quantization, "quant_method", "quant_algo") or "unknown").lower()
    return None
