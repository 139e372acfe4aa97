"""Mixers with a state of fixed size: gated delta rule, Kimi's delta attention, Mamba-2.

Bytes of states as in vLLM 0.32: the convolution's last inputs in 16 bits, the recurrent state in 32.
"""

from __future__ import annotations

from longboat.catalog.families.parts import Mixer, linear, vector
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.cache import Cache

__all__ = ("gated_delta", "kimi_delta", "mamba")

CONV_BYTES = 2
STATE_BYTES = 4


def gated_delta(fields: Fields, hidden: int, *, name: str = "linear_attn") -> Mixer:
    """Build the gated delta rule of Qwen3-Next and Qwen3.5."""
    key_heads, value_heads = fields.need("linear_num_key_heads"), fields.need("linear_num_value_heads")
    key_dim, value_dim = fields.need("linear_key_head_dim"), fields.need("linear_value_head_dim")
    kernel = fields.count("linear_conv_kernel_dim", default=4)
    keys, values = key_heads * key_dim, value_heads * value_dim
    channels = 2 * keys + values
    state = channels * (kernel - 1) * CONV_BYTES + value_heads * key_dim * value_dim * STATE_BYTES
    return Mixer(
        weights=(
            *linear(f"{name}.in_proj_qkv", "mixer", channels, hidden, "out", units=key_heads),
            *linear(f"{name}.in_proj_z", "mixer", values, hidden, "out", units=key_heads),
            *linear(f"{name}.in_proj_ba", "other", 2 * value_heads, hidden, "out", units=key_heads),
            *linear(f"{name}.conv1d", "other", channels, kernel, "out", units=key_heads),
            *linear(f"{name}.out_proj", "mixer", hidden, values, "in", units=key_heads),
            *vector(f"{name}.norms", value_dim + 2 * value_heads),
        ),
        cache=Cache(kind="state", state_bytes=state, num_state_heads=key_heads),
    )


def kimi_delta(fields: Fields, hidden: int, *, full_rank_gate: bool) -> Mixer:
    """Build Kimi delta attention (Kimi Linear, section 3): low-rank decay per channel, gated output."""
    heads, dim = fields.need("num_heads"), fields.need("head_dim")
    kernel = fields.count("short_conv_kernel_size", default=4)
    width, name = heads * dim, "self_attn"
    gate = (
        linear(f"{name}.g_proj", "mixer", width, hidden, "out", units=heads)
        if full_rank_gate
        else (
            *linear(f"{name}.g_a_proj", "mixer", dim, hidden),
            *linear(f"{name}.g_b_proj", "mixer", width, dim, "out", units=heads),
        )
    )
    state = 3 * width * (kernel - 1) * CONV_BYTES + heads * dim * dim * STATE_BYTES
    return Mixer(
        weights=(
            *linear(f"{name}.qkv_proj", "mixer", 3 * width, hidden, "out", units=heads),
            *linear(f"{name}.conv1d", "other", 3 * width, kernel, "out", units=heads),
            *linear(f"{name}.f_a_proj", "mixer", dim, hidden),
            *linear(f"{name}.f_b_proj", "mixer", width, dim, "out", units=heads),
            *linear(f"{name}.b_proj", "mixer", heads, hidden, "out", units=heads),
            *gate,
            *linear(f"{name}.o_proj", "mixer", hidden, width, "in", units=heads),
            *vector(f"{name}.norms", dim + heads + width),
        ),
        cache=Cache(kind="state", state_bytes=state, num_state_heads=heads),
    )


def mamba(fields: Fields, hidden: int, *, name: str = "mixer") -> Mixer:
    """Build Mamba-2 (Nemotron-H and others)."""
    heads, dim = fields.need("mamba_num_heads", "mamba_n_heads"), fields.need("mamba_head_dim", "mamba_d_head")
    groups = fields.count("n_groups", "mamba_n_groups", default=1)
    state_size = fields.need("ssm_state_size", "mamba_d_state")
    kernel = fields.count("conv_kernel", "mamba_d_conv", default=4)
    width = heads * dim
    channels = width + 2 * groups * state_size
    units = min(groups, heads)
    bias = fields.flag("use_bias") or fields.flag("mamba_proj_bias")
    state = channels * (kernel - 1) * CONV_BYTES + heads * dim * state_size * STATE_BYTES
    return Mixer(
        weights=(
            *linear(f"{name}.in_proj", "mixer", channels + width + heads, hidden, "out", units=units, bias=bias),
            *linear(f"{name}.conv1d", "other", channels, kernel, "out", bias=fields.flag("use_conv_bias", True)),
            *linear(f"{name}.out_proj", "mixer", hidden, width, "in", units=units, bias=bias),
            *vector(f"{name}.norms", width + 3 * heads),
        ),
        cache=Cache(kind="state", state_bytes=state, num_state_heads=heads),
    )
