"""Reads a model's config.json into a ModelShape: every weight counted, quantization applied."""

from __future__ import annotations

import re
from collections.abc import Mapping

from longboat.catalog.families.audio import audio_section, read_audio
from longboat.catalog.families.defaults import class_fields, defaults_of
from longboat.catalog.families.kinds import refuse_other_kinds
from longboat.catalog.families.parts import Stack
from longboat.catalog.families.registry import READERS, is_known, reader_of
from longboat.catalog.families.unread import unread_fields
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

# Families without a class of transformers whose head is the embedding where their config does not say.
TIED_BY_DEFAULT = ("gemma", "cohere", "granite", "minicpm", "grok", "RefinedWeb")
# Sections that some families nest, and the usual names of their fields.
NESTED = ("attn_config", "ffn_config")
USUAL = {"kv_n_heads": "num_key_value_heads", "ffn_hidden_size": "intermediate_size"}
LAYER_FIELDS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    *("num_nextn_predict_layers", "mtp_num_hidden_layers"),
)
PROMISES = ("nvfp4", "mxfp4", "fp8", "awq", "gptq", "int4", "int8", "w4a16", "w8a8", "bnb")


def shape_from_config(config: Config, *, name: str = "", quantization: Config | None = None) -> ModelShape:
    """Return the shape that a parsed config.json describes.

    quantization: the parsed hf_quant_config.json, where the folder has one
    Raises UserInputError where fields are missing without which nothing can be counted.
    """
    facts, whole = facts_from_config(config), fields_of(config)
    text = text_fields(config)
    for field in LAYER_FIELDS:
        if text.count(field) > MAX_LAYERS:
            raise UserInputError(
                f"config.json has {field} {text.count(field)}, above {MAX_LAYERS}", hint="name a model's own file"
            )
    if facts.architecture not in READERS:
        refuse_other_kinds(whole, text)
    stack = reader_of(facts.architecture, text.word("model_type"))(text)
    scheme = read_quantization(config, quantization)
    if scheme is NOT_QUANTIZED and (word := _promised(name)):
        scheme = Quantization(
            estimate=(f"weights: the name says {word}, but the config has no quantization: counted without",)
        )
    shape = _assemble(whole, text, facts, stack, name=name, quantization=scheme)
    return quantize(shape, scheme, prefix=stack.prefix) if scheme.rules else shape


def fields_of(config: Config) -> Fields:
    """Return the fields of a config as a whole, with the defaults of its type."""
    kind = Fields(config).word("model_type")
    return Fields(config, defaults_of(kind, inner=False))


def text_fields(config: Config) -> Fields:
    """Return the fields of the language model, those of nested sections under their usual names, with defaults."""
    section = text_section(config)
    flat = {
        USUAL.get(name, name): value
        for nested in NESTED
        for name, value in Fields(section).section(nested).values.items()
        if name != "model_type"
    }
    if flat.get("attn_type") == "multiquery_attention":
        flat["num_key_value_heads"] = 1
    inner = section is not config
    values = {**flat, **section}
    if inner and "model_type" not in values:
        values["model_type"] = f"{Fields(config).word('model_type')}_text"
    return Fields(values, defaults_of(Fields(values).word("model_type"), inner=inner))


def _promised(name: str) -> str:
    """Return the quantization that a model's name mentions."""
    words = re.split(r"[^a-z0-9]+", name.lower())
    return next((word for word in PROMISES if word in words), "")


def _assemble(
    whole: Fields, text: Fields, facts: ModelConfig, stack: Stack, *, name: str, quantization: Quantization
) -> ModelShape:
    hidden, vocab = text.need("hidden_size", "n_embd", "d_model"), text.need("vocab_size", "padded_vocab_size")
    towers = (*read_vision(whole, hidden), *read_audio(audio_section(whole), hidden))
    embedded = text.count("word_embed_proj_dim", default=hidden)
    estimate = (*stack.estimate, *_doubts(whole, text, facts.architecture), *quantization.estimate)
    return ModelShape(
        name=name,
        architecture=facts.architecture,
        layers=share_equal_layers(stack.layers),
        embedding=Weight(name="embed_tokens", part="embedding", rows=vocab, columns=embedded, shard="vocab"),
        head=None
        if _tied(whole, text)
        else Weight(
            name="lm_head",
            part="head",
            rows=text.count("draft_vocab_size", default=vocab),
            columns=embedded,
            shard="vocab",
        ),
        others=(Weight(name="norm", part="norm", rows=hidden), *stack.others, *towers, *stack.mtp),
        hidden_size=hidden,
        vocab_size=vocab,
        max_context_tokens=facts.max_position_tokens or 0,
        dtype=facts.dtype or "bfloat16",
        quantization=quantization.name,
        kv_cache_dtype=quantization.kv_cache_dtype,
        image_tokens=image_tokens(whole),
        estimate=estimate,
    )


def _tied(whole: Fields, text: Fields) -> bool:
    """Return whether the head is the embedding: as published, else by the family's default."""
    published = ("tie_word_embeddings", "tie_embedding")
    for fields in (whole, text):
        for name in published:
            if isinstance(value := fields.values.get(name), bool):
                return value
    kind, outer = text.word("model_type"), whole.word("model_type")
    if outer != kind and class_fields(outer):
        return whole.flag("tie_word_embeddings")
    return text.flag("tie_word_embeddings", kind.startswith(TIED_BY_DEFAULT) and not class_fields(kind))


def _doubts(whole: Fields, text: Fields, architecture: str) -> tuple[str, ...]:
    doubts, kind = [], text.word("model_type")
    if not is_known(architecture, kind):
        doubts.append(
            f"architecture {architecture or 'without a name'} is unknown: counted as a common decoder from its fields"
        )
    if unread := unread_fields(text):
        doubts.append(f"config.json has fields that were not read: {', '.join(unread)}")
    audio = audio_section(whole)
    if audio and not read_audio(audio, 1):
        doubts.append("weights: the audio tower is left out")
    multimodal = text_section(whole.values) is not whole.values and not audio
    if multimodal and "vision_config" not in whole and "vision" not in architecture.lower():
        doubts.append("weights: the config has no vision_config: a vision tower, if any, is left out")
    return tuple(doubts)
