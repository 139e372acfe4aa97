"""Reads hybrids: layers with attention beside layers whose state does not grow, or both in one layer."""

from __future__ import annotations

from dataclasses import replace

from longboat.catalog.families.attention import Heads, grouped_attention, heads_of
from longboat.catalog.families.decoder import layer_kinds, read_feed_forward
from longboat.catalog.families.feed_forward import dense, experts
from longboat.catalog.families.parts import FeedForward, Mixer, Stack, join, linear
from longboat.catalog.families.state_space import lightning, mamba_one, mamba_two, short_convolution
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.model_shape import Layer
from longboat.catalog.shape.weight import Weight

__all__ = ("read_bamba", "read_falcon_h1", "read_jamba", "read_lfm2", "read_mamba", "read_minimax", "read_zamba2")


def read_jamba(fields: Fields) -> Stack:
    """Read Jamba: one layer of each period attends, every other one of another period has experts."""
    hidden = fields.need("hidden_size")
    period, offset = fields.count("attn_layer_period", default=8), int(fields.number("attn_layer_offset", 4))
    layers = []
    for index in range(fields.need("num_hidden_layers")):
        attends = index % period == offset
        mixer = grouped_attention(hidden, heads_of(fields)) if attends else mamba_one(fields, hidden)
        layers.append(join(mixer, _jamba_feed_forward(fields, hidden, index), 2 * hidden))
    return Stack(layers=tuple(layers))


def _jamba_feed_forward(fields: Fields, hidden: int, index: int) -> FeedForward:
    width, count = fields.need("intermediate_size"), fields.count("num_experts", default=1)
    period, offset = fields.count("expert_layer_period", default=2), int(fields.number("expert_layer_offset", 1))
    if count < 2 or index % period != offset:
        return dense(hidden, width, name="feed_forward")
    return experts(hidden, width, count, fields.count("num_experts_per_tok", default=2), name="feed_forward")


def read_mamba(fields: Fields) -> Stack:
    """Read Mamba, Mamba-2 and Falcon Mamba, which have no attention and no cache that grows."""
    hidden = fields.need("hidden_size")
    second = fields.word("model_type") == "mamba2"
    mixer = mamba_two(fields, hidden, name="mixer") if second else mamba_one(fields, hidden, name="mixer")
    return Stack(layers=(join(mixer, None, hidden),) * fields.need("num_hidden_layers"), prefix="backbone.")


def read_bamba(fields: Fields) -> Stack:
    """Read Bamba, whose ``attn_layer_indices`` attend, and Granite 4 by its kinds of layers; the others are Mamba-2."""
    hidden = fields.need("hidden_size")
    attending, kinds = (
        fields.numbers("attn_layer_indices"),
        fields.words("layer_types") or fields.words("layers_block_type"),
    )
    layers = []
    for index in range(fields.need("num_hidden_layers")):
        attends = kinds[index : index + 1] in (("attention",), ("full_attention",)) if kinds else index in attending
        mixer = grouped_attention(hidden, heads_of(fields)) if attends else mamba_two(fields, hidden)
        layers.append(join(mixer, _bamba_feed_forward(fields, hidden, index), 2 * hidden))
    return Stack(layers=tuple(layers))


def _bamba_feed_forward(fields: Fields, hidden: int, index: int) -> FeedForward:
    if fields.word("model_type") == "bamba" or fields.count("num_local_experts"):
        return read_feed_forward(fields, hidden, index)
    return dense(hidden, fields.count("shared_intermediate_size", "intermediate_size"), name="shared_mlp")


def read_falcon_h1(fields: Fields) -> Stack:
    """Read Falcon-H1: each layer has attention and Mamba-2 side by side, so it has a cache and a state."""
    hidden = fields.need("hidden_size")
    attention = grouped_attention(hidden, heads_of(fields), bias=fields.flag("attention_bias"))
    state = mamba_two(fields, hidden, width=fields.count("mamba_d_ssm"))
    both = replace(
        attention,
        weights=attention.weights + state.weights,
        cache=replace(attention.cache, state_bytes=state.cache.state_bytes),
    )
    layer = join(both, dense(hidden, fields.need("intermediate_size"), name="feed_forward"), 2 * hidden)
    return Stack(layers=(layer,) * fields.need("num_hidden_layers"))


def read_lfm2(fields: Fields) -> Stack:
    """Read LFM2: short convolutions, and attention in the layers that ``layer_types`` or ``full_attn_idxs`` name."""
    hidden = fields.need("hidden_size")
    kinds, attending = fields.words("layer_types"), fields.numbers("full_attn_idxs")
    layers = []
    for index in range(fields.need("num_hidden_layers")):
        attends = kinds[index : index + 1] == ("full_attention",) if kinds else index in attending or not attending
        heads = heads_of(fields)
        mixer = (
            grouped_attention(hidden, heads, norm_params=2 * heads.key_dim)
            if attends
            else short_convolution(fields, hidden)
        )
        layers.append(join(mixer, _lfm2_feed_forward(fields, hidden, index), 2 * hidden))
    return Stack(layers=tuple(layers))


def _lfm2_feed_forward(fields: Fields, hidden: int, index: int) -> FeedForward:
    if fields.count("num_experts") and index >= fields.count("num_dense_layers"):
        return experts(
            hidden,
            fields.need("moe_intermediate_size"),
            fields.need("num_experts"),
            fields.count("num_experts_per_tok", default=1),
            name="feed_forward",
            router_bias=True,
        )
    width = fields.count("block_ff_dim", "intermediate_size")
    if not fields.count("num_experts") and fields.flag("block_auto_adjust_ff_dim", True):
        multiple = fields.count("block_multiple_of", default=256)
        width = int(int(2 * width / 3) * fields.number("block_ffn_dim_multiplier", 1.0))
        width = -(-width // multiple) * multiple
    return dense(hidden, width, name="feed_forward")


def read_minimax(fields: Fields) -> Stack:
    """Read MiniMax-01: ``attn_type_list`` has 1, or ``layer_types`` full_attention, where a layer attends."""
    hidden, kinds = fields.need("hidden_size"), fields.numbers("attn_type_list")
    words = layer_kinds(fields)
    layers = []
    for index, word in enumerate(words):
        attends = bool(kinds[index]) if index < len(kinds) else word == "full_attention"
        mixer = grouped_attention(hidden, heads_of(fields)) if attends else lightning(fields, hidden)
        layers.append(join(mixer, read_feed_forward(fields, hidden, index), 2 * hidden))
    return Stack(layers=tuple(layers))


def read_zamba2(fields: Fields) -> Stack:
    """Read Zamba2: Mamba-2 in each layer, and blocks of attention whose weights several layers share."""
    hidden, num_layers = fields.need("hidden_size"), fields.need("num_hidden_layers")
    kinds = fields.words("layers_block_type") or fields.words("layer_types")
    shared_at = fields.numbers("hybrid_layer_ids") or tuple(
        index for index, kind in enumerate(kinds) if kind == "hybrid"
    )
    state, blocks = mamba_two(fields, hidden), fields.count("num_mem_blocks", default=1)
    layers: list[Layer] = []
    for index in range(num_layers):
        if index not in shared_at:
            layers.append(join(state, None, hidden))
            continue
        first = shared_at.index(index) < blocks
        layers.append(join(_zamba2_shared(fields, hidden, state, first=first), None, 2 * hidden))
    return Stack(layers=tuple(layers))


def _zamba2_shared(fields: Fields, hidden: int, state: Mixer, *, first: bool) -> Mixer:
    """Build a layer that uses a shared block. first: it is the one with which the block's weights are counted."""
    inputs = fields.count("attention_hidden_size", default=2 * hidden)
    count = fields.need("num_attention_heads")
    dim = fields.count("attention_head_dim", default=inputs // count)
    heads = Heads(
        num_heads=count, num_kv_heads=fields.count("num_key_value_heads", default=count), key_dim=dim, value_dim=dim
    )
    attention = grouped_attention(inputs, heads)
    width, rank = fields.need("intermediate_size"), fields.count("adapter_rank", default=128)
    weights = state.weights + linear("linear", "mixer", hidden, hidden)
    weights += _adapter("feed_forward", hidden, 2 * width, rank)
    if fields.flag("use_shared_attention_adapter"):
        for name in ("q", "k", "v"):
            weights += _adapter(f"self_attn.{name}", inputs, count * dim, rank)
    if first:
        weights += tuple(weight for weight in attention.weights if "o_proj" not in weight.name)
        weights += linear("self_attn.o_proj", "attention", hidden, count * dim, "in", units=count)
        weights += dense(hidden, width, name="feed_forward").weights
    cache = replace(attention.cache, state_bytes=state.cache.state_bytes)
    return replace(attention, weights=weights, cache=cache)


def _adapter(name: str, inputs: int, outputs: int, rank: int) -> tuple[Weight, ...]:
    return linear(f"{name}.adapter_a", "other", rank, inputs) + linear(f"{name}.adapter_b", "other", outputs, rank)
