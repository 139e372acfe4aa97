"""Reads a model's config.json into a ModelShape: every weight counted, quantization applied."""

from __future__ import annotations

import re
from collections.abc import Mapping

from longboat.catalog.families.parts import Stack
from longboat.catalog.families.registry import is_known, reader_of
from longboat.catalog.families.vision import image_tokens, read_vision
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.formats.hf_config import facts_from_config, text_section
from longboat.catalog.formats.model_facts import ModelConfig
from longboat.catalog.quantization.quantized import quantize
from longboat.catalog.quantization.rules import NOT_QUANTIZED, Quantization, read_quantization
from longboat.catalog.shape.model_shape import MAX_LAYERS, ModelShape, share_equal_layers
from longboat.catalog.shape.weight import Weight
from longboat.core.errors import UserInputError

__all__ = ("shape_from_config",)

Config = Mapping[str, object]

# Families whose head is the embedding where their config does not say.
TIED_BY_DEFAULT = ("gemma", "cohere", "granite")
LAYER_FIELDS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    *("num_nextn_predict_layers", "mtp_num_hidden_layers"),
)
PROMISES = ("nvfp4", "mxfp4", "fp8", "awq", "gptq", "int4", "int8", "w4a16", "w8a8", "bnb")
# Fields about weights or caches that only a family's own reader counts.
FAMILY_FIELDS = (
    "block_configs",
    "compress_ratios",
    "hybrid_override_pattern",
    "linear_attn_config",
    "moe_latent_size",
    "sparse_attention_config",
    "ssm_cfg",
)


def shape_from_config(config: Config, *, name: str = "", quantization: Config | None = None) -> ModelShape:
    """Return the shape that a parsed config.json describes.

    quantization: the parsed hf_quant_config.json, where the folder has one
    Raises UserInputError where fields are missing without which nothing can be counted.
    """
    facts, text = facts_from_config(config), Fields(text_section(config))
    for field in LAYER_FIELDS:
        if text.count(field) > MAX_LAYERS:
            raise UserInputError(
                f"config.json has {field} {text.count(field)}, above {MAX_LAYERS}", hint="is it the right file?"
            )
    stack = reader_of(facts.architecture)(text)
    scheme = read_quantization(config, quantization)
    if scheme is NOT_QUANTIZED and (word := _promised(name)):
        scheme = Quantization(
            estimate=(f"weights: the name says {word}, but the config has no quantization: counted without",)
        )
    shape = _assemble(config, facts, stack, name=name, quantization=scheme)
    return quantize(shape, scheme, prefix=stack.prefix) if scheme.rules else shape


def _promised(name: str) -> str:
    """Return the quantization that a model's name mentions."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return next((word for word in PROMISES if word in words), "")


def _assemble(config: Config, facts: ModelConfig, stack: Stack, *, name: str, quantization: Quantization) -> ModelShape:
    text = Fields(text_section(config))
    hidden, vocab = text.need("hidden_size", "n_embd", "d_model"), text.need("vocab_size")
    vision = read_vision(Fields(config).section("vision_config"), hidden)
    tied = _tied(config, text)
    return ModelShape(
        name=name,
        architecture=facts.architecture,
        layers=share_equal_layers(stack.layers),
        embedding=Weight(name="embed_tokens", part="embedding", rows=vocab, columns=hidden, shard="vocab"),
        head=None if tied else Weight(name="lm_head", part="head", rows=vocab, columns=hidden, shard="vocab"),
        others=(Weight(name="norm", part="norm", rows=hidden), *stack.others, *vision, *stack.mtp),
        hidden_size=hidden,
        vocab_size=vocab,
        max_context_tokens=facts.max_position_tokens or 0,
        dtype=facts.dtype or "bfloat16",
        quantization=quantization.name,
        kv_cache_dtype=quantization.kv_cache_dtype,
        image_tokens=image_tokens(Fields(config)),
        estimate=(*stack.estimate, *_doubts(config, text, facts.architecture), *quantization.estimate),
    )


def _tied(config: Config, text: Fields) -> bool:
    default = text.word("model_type").startswith(TIED_BY_DEFAULT)
    return Fields(config).flag("tie_word_embeddings", text.flag("tie_word_embeddings", default))


def _doubts(config: Config, text: Fields, architecture: str) -> tuple[str, ...]:
    doubts = []
    if not is_known(architecture):
        doubts.append(
            f"architecture {architecture or 'without a name'} is unknown: counted as a common decoder from its fields"
        )
        doubts += [f"{name} is not understood for this architecture" for name in FAMILY_FIELDS if name in text]
    if "audio_config" in Fields(config):
        doubts.append("weights: the audio tower is left out")
    if text.values is not config and "vision_config" not in Fields(config) and "vision" not in architecture.lower():
        doubts.append("weights: the config has no vision_config: a vision tower, if any, is left out")
    return tuple(doubts)
