"""Makes a shape from a GGUF header: exact bytes by tensor, heads and caches from the metadata."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from longboat.catalog.formats.gguf import GgufHeader, Value
from longboat.catalog.formats.model_facts import ModelConfig
from longboat.catalog.shape.cache import NO_CACHE, Cache
from longboat.catalog.shape.from_tensors import shape_from_tensors
from longboat.catalog.shape.model_shape import MAX_LAYERS, Layer, ModelShape
from longboat.catalog.shape.tensors import Tensor, place_of
from longboat.core.errors import UserInputError

__all__ = ("facts_from_shape", "shape_from_gguf")

# Period of the layers that see all tokens, where the metadata has a window but no pattern (llama.cpp's own table).
PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma4": 6, "gpt-oss": 2, "llama4": 4, "cohere2": 4, "phi3": 1}
# Architectures whose caches follow from the fields that this module reads.
KNOWN = {
    *("llama", "llama4", "mistral3", "phi3", "olmo2", "granite", "internlm2", "stablelm", "starcoder2", "mimo2"),
    *("qwen2", "qwen2moe", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "glm4moe", "minimax-m2", "deepseek2"),
    *("gemma", "gemma2", "gemma3", "gpt-oss", "command-r", "cohere2", "mamba", "mamba2", "nemotron_h", "qwen3next"),
}


class _Metadata:
    """The metadata fields of the architecture, by their names without it."""

    def __init__(self, header: GgufHeader) -> None:
        self.values = header.metadata
        self.lengths = header.lengths
        self.architecture = str(self.values.get("general.architecture", ""))

    def get(self, name: str) -> Value | None:
        return self.values.get(f"{self.architecture}.{name}")

    def count(self, name: str, default: int = 0) -> int:
        value = self.get(name)
        if isinstance(value, tuple):
            value = max((item for item in value if isinstance(item, int)), default=default)
        return value if isinstance(value, int) and value > 0 else default

    def each(self, name: str, num_layers: int, default: int) -> tuple[int, ...]:
        """Return one number per layer: some fields are a list, some one number for all."""
        value = self.get(name)
        if isinstance(value, tuple) and len(value) >= num_layers:
            return tuple(item if isinstance(item, int) else default for item in value[:num_layers])
        return (self.count(name, default),) * num_layers


def shape_from_gguf(headers: Sequence[GgufHeader], *, name: str = "", origin: str = "the file") -> ModelShape:
    """Return the shape of a model in one GGUF file, or in several parts (the first has the metadata).

    Raises UserInputError where the header has no number of layers.
    """
    fields = _Metadata(headers[0])
    tensors = [tensor for header in headers for tensor in header.tensors]
    num_layers = fields.count("block_count") - fields.count("nextn_predict_layers")
    if not 0 < num_layers <= MAX_LAYERS:
        raise UserInputError(
            f"{origin} has {num_layers} layers in {fields.architecture or 'architecture'}.block_count",
            hint="only GGUF files of language models can be planned; of a model in several files, give the first",
        )
    layers = _layers(fields, num_layers, _recurrent_layers(tensors))
    shape = shape_from_tensors(tensors, name=name, caches=layers)
    return replace(
        shape,
        name=name or str(fields.values.get("general.name", "")),
        architecture=fields.architecture,
        max_context_tokens=fields.count("context_length"),
        vocab_size=shape.vocab_size or fields.lengths.get("tokenizer.ggml.tokens", 0),
        dtype="float16",
        quantization=_most_used(tensors),
        estimate=(*shape.estimate, *_doubts(fields)),
    )


def facts_from_shape(shape: ModelShape) -> ModelConfig:
    """Return the settings of a model that a shape states; those about its heads are left out."""
    return ModelConfig(
        architecture=shape.architecture,
        num_layers=len(shape.layers),
        vocab_size=shape.vocab_size or None,
        max_position_tokens=shape.max_context_tokens or None,
        quantization=shape.quantization or None,
    )


def _recurrent_layers(tensors: Iterable[Tensor]) -> set[int]:
    """Return the layers with a state: those with a state-space mixer (Mamba, Mamba-2, gated delta rule)."""
    places = (place_of(tensor.name) for tensor in tensors)
    return {place.layer for place in places if place.layer is not None and place.module.startswith("ssm_")}


def _layers(fields: _Metadata, num_layers: int, recurrent: set[int]) -> list[Layer]:
    heads = fields.each("attention.head_count", num_layers, 1)
    kv_heads = fields.each("attention.head_count_kv", num_layers, heads[0])
    hidden = fields.count("embedding_length")
    key = fields.count("attention.key_length", hidden // max(1, heads[0]))
    value = fields.count("attention.value_length", key)
    return [
        Layer(
            weights=(),
            cache=_state(fields) if index in recurrent else _cache(fields, index, kv_heads[index], key, value),
            num_heads=0 if index in recurrent else heads[index],
            query_dim=key,
            value_dim=value,
            num_experts=fields.count("expert_count"),
            experts_per_token=fields.count("expert_used_count"),
        )
        for index in range(num_layers)
    ]


def _state(fields: _Metadata) -> Cache:
    """Count the last inputs of the convolution and the recurrent state in fp32, as ``llama-hparams.cpp`` does."""
    inner, size = fields.count("ssm.inner_size"), fields.count("ssm.state_size")
    channels = inner + 2 * fields.count("ssm.group_count") * size
    return Cache(kind="state", state_bytes=4 * ((fields.count("ssm.conv_kernel", 1) - 1) * channels + size * inner))


def _cache(fields: _Metadata, index: int, kv_heads: int, key: int, value: int) -> Cache:
    rank = fields.count("attention.kv_lora_rank")
    if rank:
        return Cache(kind="latent", latent_dim=rank + fields.count("rope.dimension_count", 64))
    if not kv_heads:
        return NO_CACHE
    window = fields.count("attention.sliding_window")
    slides = bool(window) and _slides(fields, index)
    return Cache(
        kind="window" if slides else "full",
        num_kv_heads=kv_heads,
        key_dim=key,
        value_dim=value,
        window_tokens=window if slides else 0,
    )


def _slides(fields: _Metadata, index: int) -> bool:
    pattern = fields.get("attention.sliding_window_pattern")
    if isinstance(pattern, tuple) and index < len(pattern):
        return bool(pattern[index])
    period = pattern if isinstance(pattern, int) else PATTERNS.get(fields.architecture, 0)
    if period == 1:
        return True
    return bool(period) and (index + 1) % period != 0


def _most_used(tensors: Iterable[Tensor]) -> str:
    used: Counter[str] = Counter()
    for tensor in tensors:
        if len(tensor.shape) > 1:
            used[tensor.dtype] += tensor.num_bytes
    return used.most_common(1)[0][0].lower() if used else ""


def _doubts(fields: _Metadata) -> tuple[str, ...]:
    doubts = []
    if fields.architecture not in KNOWN:
        doubts.append(f"architecture {fields.architecture} is unknown: caches are counted from its attention fields")
    told = isinstance(fields.get("attention.sliding_window_pattern"), tuple | int)
    if fields.count("attention.sliding_window") and not told and fields.architecture not in PATTERNS:
        doubts.append("the metadata has a window but no pattern: every layer is counted as seeing all tokens")
    return tuple(doubts)
