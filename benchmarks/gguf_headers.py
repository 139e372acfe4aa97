"""Writes the GGUF file of a catalog model without its numbers: header and tensor table, and a hole of the right size.

Names, metadata and tensors are those that llama.cpp's converter writes; the types of the tensors are those of its
``quantize`` (``catalog/quantization/requantize.py``), for gpt-oss those of the published files.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from longboat.catalog.formats.gguf_types import GGUF_TYPES, bits_of
from longboat.catalog.quantization.requantize import requantized
from longboat.catalog.shape.model_shape import Layer, ModelShape, share_equal_layers
from longboat.catalog.shape.weight import Weight

__all__ = ("stored_as", "write_file")

ALIGNMENT = 32
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
    "GptOssForCausalLM": "gpt-oss",
    "Gemma3ForConditionalGeneration": "gemma3",
    "DeepseekV3ForCausalLM": "deepseek2",
}
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.sinks": "attn_sinks",
    "mlp.gate": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
NORMS = {
    "gpt-oss": ("attn_norm", "post_attention_norm"),
    "gemma3": ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"),
}
TYPES = ("F32", "Q8_0", "Q6_K", "Q5_K", "Q4_K", "MXFP4")
CODES = {bool: (7, "?"), int: (4, "I"), float: (6, "f")}
TEXT, LIST, INTEGER = 8, 9, 5
NORMAL, CONTROL = 1, 3
# Of DeepSeek-V3 and R1: numbers of a head's key that are rotated, and the rank of keys and values.
ROTATED, LATENT = 64, 512


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    kind: int  # of ``GGUF_TYPES``
    dimensions: tuple[int, ...]  # innermost first

    @property
    def num_bytes(self) -> int:
        kind = GGUF_TYPES[self.kind]
        return math.prod(self.dimensions) // kind.block * kind.num_bytes


def stored_as(shape: ModelShape, quantization: str) -> ModelShape:
    """Return the model as its published GGUF file holds it, which has no vision tower.

    Files of gpt-oss have experts in MXFP4 and all else in Q8_0.
    """
    shape = replace(shape, others=tuple(weight for weight in shape.others if weight.part != "vision"))
    if shape.architecture != "GptOssForCausalLM":
        return requantized(shape, quantization)
    mixed, whole = requantized(shape, "mxfp4"), requantized(shape, "q8_0")
    return replace(whole, layers=share_equal_layers(map(_with_experts_of, whole.layers, mixed.layers)))


def _with_experts_of(layer: Layer, other: Layer) -> Layer:
    pairs = zip(layer.weights, other.weights, strict=True)
    return replace(
        layer, weights=tuple(two if one.part == "experts" and one.columns > 1 else one for one, two in pairs)
    )


def write_file(shape: ModelShape, target: Path) -> int:
    """Write the file of a shape that ``stored_as`` returned, and return its apparent size."""
    metadata = [_entry(key, value) for key, value in _metadata(shape)]
    tensors = list(_tensors(shape))
    with target.open("wb") as file:
        file.write(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata)) + b"".join(metadata))
        offset = 0
        for one in tensors:
            sizes = struct.pack(f"<I{len(one.dimensions)}Q", len(one.dimensions), *one.dimensions)
            file.write(_text(one.name) + sizes + struct.pack("<IQ", one.kind, offset))
            offset += one.num_bytes + -one.num_bytes % ALIGNMENT
        file.truncate(file.tell() + -file.tell() % ALIGNMENT + offset)
        return file.seek(0, 2)


def _tensors(shape: ModelShape) -> Iterator[_Tensor]:
    architecture = ARCHITECTURES[shape.architecture]
    if shape.embedding is not None:
        yield _tensor("token_embd.weight", shape.embedding)
    for index, layer in enumerate(shape.layers):
        for weight in layer.weights:
            yield from _of_layer(f"blk.{index}", weight, layer, architecture)
    yield _Tensor("output_norm.weight", 0, (shape.hidden_size,))
    if shape.head is not None:
        yield _tensor("output.weight", shape.head)


def _of_layer(block: str, weight: Weight, layer: Layer, architecture: str) -> Iterator[_Tensor]:
    if weight.name == "norms":
        names = NORMS.get(architecture, ("attn_norm", "ffn_norm"))
        yield from (_Tensor(f"{block}.{name}.weight", 0, (weight.rows // len(names),)) for name in names)
    elif weight.name == "self_attn.norms":
        yield from (
            _Tensor(f"{block}.{name}.weight", 0, (weight.rows // 2,)) for name in ("attn_q_norm", "attn_k_norm")
        )
    elif weight.name == "self_attn.kv_b_proj":  # the converter stores keys and values apart, and keys transposed
        heads = layer.num_heads
        kept = layer.query_dim - ROTATED  # too few for blocks of 256: ``quantize`` takes Q5_0 in place of Q4_K
        yield _Tensor(f"{block}.attn_k_b.weight", _kind_of("Q5_0"), (kept, LATENT, heads))
        yield _Tensor(f"{block}.attn_v_b.weight", _kind(weight), (LATENT, layer.value_dim, heads))
    elif weight.name == "mlp.gate.bias" and architecture == "deepseek2":
        yield _tensor(f"{block}.exp_probs_b.bias", weight)
    else:
        name, bias, _ = weight.name.partition(".bias")
        yield _tensor(f"{block}.{NAMES[name]}.{'bias' if bias else 'weight'}", weight)


def _tensor(name: str, weight: Weight) -> _Tensor:
    sizes = [weight.columns, weight.rows] if weight.columns > 1 else [weight.rows]
    return _Tensor(name, _kind(weight), (*sizes, weight.count) if weight.count > 1 else tuple(sizes))


def _kind(weight: Weight) -> int:
    bits = 32.0 if weight.columns == 1 else weight.bits
    return _kind_of(next(name for name in TYPES if bits_of(name) == bits))


def _kind_of(name: str) -> int:
    return next(number for number, kind in GGUF_TYPES.items() if kind.name == name)


def _metadata(shape: ModelShape) -> Iterator[tuple[str, object]]:
    name, layer = ARCHITECTURES[shape.architecture], shape.layers[-1]
    windows = [one.cache.window_tokens for one in shape.layers if one.cache.kind == "window"]
    yield "general.architecture", name
    yield "general.name", shape.name
    yield "general.file_type", 15
    values: dict[str, object] = {
        "context_length": shape.max_context_tokens,
        "embedding_length": shape.hidden_size,
        "block_count": len(shape.layers),
        "feed_forward_length": _rows(shape.layers[0], "mlp.gate_proj") or _rows(layer, "mlp.experts.gate_proj"),
        "attention.head_count": layer.num_heads,
        "attention.head_count_kv": layer.cache.num_kv_heads or 1,
        "attention.key_length": layer.cache.key_dim,
        "attention.value_length": layer.cache.value_dim,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 500000.0,
        "vocab_size": shape.vocab_size,
    }
    if layer.num_experts:
        values |= {
            "expert_count": layer.num_experts,
            "expert_used_count": layer.experts_per_token,
            "expert_feed_forward_length": _rows(layer, "mlp.experts.gate_proj"),
        }
    if windows:
        values["attention.sliding_window"] = windows[0]
    if layer.cache.kind == "latent":
        values |= _latent(shape, layer)
    yield from ((f"{name}.{key}", value) for key, value in values.items())
    yield from _tokenizer(shape)


def _latent(shape: ModelShape, layer: Layer) -> dict[str, object]:
    """Return the fields of multi-head latent attention, and of the experts of the models that have it."""
    return {
        "leading_dense_block_count": sum(1 for one in shape.layers if not one.num_experts),
        "attention.q_lora_rank": _rows(layer, "self_attn.q_a_proj"),
        "attention.kv_lora_rank": LATENT,
        "attention.key_length": LATENT + ROTATED,
        "attention.value_length": LATENT,
        "attention.key_length_mla": layer.query_dim,
        "attention.value_length_mla": layer.value_dim,
        "rope.dimension_count": ROTATED,
        "expert_shared_count": 1,
        "expert_weights_scale": 2.5,
        "expert_weights_norm": True,
        "expert_gating_func": 2,
    }


def _tokenizer(shape: ModelShape) -> Iterator[tuple[str, object]]:
    """Yield a vocabulary of the right size, whose words are numbers."""
    count = shape.embedding.rows if shape.embedding is not None else shape.vocab_size
    yield "tokenizer.ggml.model", "gpt2"
    yield "tokenizer.ggml.pre", "llama-bpe"
    yield "tokenizer.ggml.tokens", [f"<{index}>" for index in range(count)]
    yield "tokenizer.ggml.token_type", [NORMAL] * (count - 1) + [CONTROL]
    yield "tokenizer.ggml.merges", ["a b"]
    yield "tokenizer.ggml.bos_token_id", count - 1
    yield "tokenizer.ggml.eos_token_id", count - 1


def _rows(layer: Layer, name: str) -> int:
    return next((weight.rows for weight in layer.weights if weight.name == name), 0)


def _entry(key: str, value: object) -> bytes:
    if isinstance(value, str):
        return _text(key) + struct.pack("<I", TEXT) + _text(value)
    if isinstance(value, list):
        kind, items = (TEXT, b"".join(map(_text, value))) if isinstance(value[0], str) else (INTEGER, _numbers(value))
        return _text(key) + struct.pack("<IIQ", LIST, kind, len(value)) + items
    kind, code = CODES[type(value)]
    return _text(key) + struct.pack(f"<I{code}", kind, value)


def _numbers(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()
