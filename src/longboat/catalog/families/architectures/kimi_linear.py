"""Reads Kimi Linear and Kimi K3: delta attention in most layers, latent attention in the others, experts."""

from __future__ import annotations

from longboat.catalog.families.attention import latent_attention
from longboat.catalog.families.decoder import read_feed_forward
from longboat.catalog.families.feed_forward import experts
from longboat.catalog.families.mixers import kimi_delta
from longboat.catalog.families.parts import FeedForward, Mixer, Stack, join
from longboat.catalog.families.sparsity import is_sparse, num_experts
from longboat.catalog.formats.config_fields import Fields

__all__ = ("read_kimi_linear",)

NEW_IN_K3 = "weights: gates, attention residuals and latent experts are counted as published papers describe them"


def read_kimi_linear(fields: Fields) -> Stack:
    """Read layers by ``linear_attn_config``, which counts them from one."""
    hidden, linear = fields.need("hidden_size"), fields.section("linear_attn_config") or _flat(fields)
    kinds = fields.words("layer_types")
    full = set(linear.numbers("full_attn_layers"))
    full |= {index + 1 for index, kind in enumerate(kinds) if kind == "full_attention"}
    layers = tuple(
        join(_mixer(fields, linear, hidden, index + 1 in full), _feed_forward(fields, hidden, index), 2 * hidden)
        for index in range(fields.need("num_hidden_layers"))
    )
    doubts = (NEW_IN_K3,) if fields.count("routed_expert_hidden_size") else ()
    return Stack(layers=layers, prefix="language_model.model.", estimate=doubts)


def _flat(fields: Fields) -> Fields:
    """Return the section as transformers 5 writes it, without one."""
    return Fields(
        {
            "num_heads": fields.count("linear_num_heads"),
            "head_dim": fields.count("linear_head_dim"),
            "short_conv_kernel_size": fields.count("linear_conv_kernel_dim"),
        }
    )


def _mixer(fields: Fields, linear: Fields, hidden: int, full: bool) -> Mixer:
    if full:
        return latent_attention(fields, hidden, out_gate=fields.flag("mla_use_output_gate"))
    return kimi_delta(linear, hidden, full_rank_gate=linear.flag("use_full_rank_gate"))


def _feed_forward(fields: Fields, hidden: int, index: int) -> FeedForward:
    latent = fields.count("routed_expert_hidden_size")
    if not latent or not is_sparse(fields, index):
        return read_feed_forward(fields, hidden, index)
    width = fields.need("moe_intermediate_size")
    chosen = fields.need("num_experts_per_token", "num_experts_per_tok")
    shared = width * fields.count("num_shared_experts")
    return experts(hidden, width, num_experts(fields), chosen, shared_width=shared, router_bias=True, latent=latent)
