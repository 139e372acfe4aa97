"""Mixers of the first Mamba and of short convolutions, and Mamba-2 under the names of its other families.

Bytes of states as in vLLM 0.32: the convolution's last inputs in 16 bits, the recurrent state in 32.
"""

from __future__ import annotations

from longboat.catalog.families.mixers import CONV_BYTES, STATE_BYTES
from longboat.catalog.families.parts import Mixer, linear, vector
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.cache import Cache

__all__ = ("lightning", "mamba_one", "mamba_two", "short_convolution")


def mamba_one(fields: Fields, hidden: int, *, name: str = "mamba") -> Mixer:
    """Build Mamba (Jamba, Mamba, Falcon Mamba)."""
    width = fields.count("intermediate_size") if "state_size" in fields else 0
    width = width or fields.count("mamba_expand", "expand", default=2) * hidden
    size = fields.count("mamba_d_state", "state_size", default=16)
    rank = fields.count("mamba_dt_rank", "time_step_rank", default=-(-hidden // 16))
    kernel = fields.count("mamba_d_conv", "conv_kernel", default=4)
    state = width * ((kernel - 1) * CONV_BYTES + size * STATE_BYTES)
    return Mixer(
        weights=(
            *linear(f"{name}.in_proj", "mixer", 2 * width, hidden, "out"),
            *linear(f"{name}.conv1d", "other", width, kernel, "out", bias=True),
            *linear(f"{name}.x_proj", "mixer", rank + 2 * size, width, "in"),
            *linear(f"{name}.dt_proj", "mixer", width, rank, "out", bias=True),
            *linear(f"{name}.A_log", "other", width, size, "out"),
            *linear(f"{name}.out_proj", "mixer", hidden, width, "in"),
            *vector(f"{name}.norms", width + rank + 2 * size),
        ),
        cache=Cache(kind="state", state_bytes=state, num_state_heads=width),
    )


def mamba_two(fields: Fields, hidden: int, *, width: int = 0, name: str = "mamba") -> Mixer:
    """Build Mamba-2 where configs name its width, or its heads in other words (Mamba-2, Zamba2, Bamba, Falcon-H1).

    width: of the inner state; 0: ``expand`` times the hidden state
    """
    width = width or fields.count("mamba_expand", "expand", default=2) * hidden
    heads = fields.count("mamba_n_heads", "n_mamba_heads", "num_heads", default=1)
    size = fields.need("mamba_d_state", "state_size")
    groups = fields.count("mamba_n_groups", "mamba_ngroups", "n_groups", default=1)
    kernel = fields.count("mamba_d_conv", "conv_kernel", default=4)
    channels, units = width + 2 * groups * size, min(groups, heads)
    state = channels * (kernel - 1) * CONV_BYTES + width * size * STATE_BYTES
    return Mixer(
        weights=(
            *linear(f"{name}.in_proj", "mixer", channels + width + heads, hidden, "out", units=units),
            *linear(f"{name}.conv1d", "other", channels, kernel, "out", bias=True),
            *linear(f"{name}.out_proj", "mixer", hidden, width, "in", units=units),
            *vector(f"{name}.norms", width + 3 * heads),
        ),
        cache=Cache(kind="state", state_bytes=state, num_state_heads=heads),
    )


def short_convolution(fields: Fields, hidden: int, *, name: str = "conv") -> Mixer:
    """Build the gated short convolution of LFM2: it keeps the last inputs of its kernel."""
    kernel, bias = fields.count("conv_L_cache", default=3), fields.flag("conv_bias")
    return Mixer(
        weights=(
            *linear(f"{name}.in_proj", "mixer", 3 * hidden, hidden, "out", bias=bias),
            *linear(f"{name}.conv", "other", hidden, kernel, "out", bias=bias),
            *linear(f"{name}.out_proj", "mixer", hidden, hidden, "in", bias=bias),
        ),
        cache=Cache(kind="state", state_bytes=hidden * kernel * CONV_BYTES, num_state_heads=hidden),
    )


def lightning(fields: Fields, hidden: int, *, name: str = "self_attn") -> Mixer:
    """Build lightning attention (MiniMax-01): one matrix of keys and values for each head, whatever was read."""
    heads = fields.need("num_attention_heads")
    dim = fields.count("head_dim", default=hidden // heads)
    width = heads * dim
    return Mixer(
        weights=(
            *linear(f"{name}.qkv_proj", "mixer", 3 * width, hidden, "out", units=heads),
            *linear(f"{name}.output_gate", "mixer", width, hidden, "out", units=heads),
            *linear(f"{name}.out_proj", "mixer", hidden, width, "in", units=heads),
            *vector(f"{name}.norm", width),
        ),
        cache=Cache(kind="state", state_bytes=heads * dim * dim * STATE_BYTES, num_state_heads=heads),
    )
