"""Reads NVIDIA's hybrids: Nemotron-H (Mamba-2, attention, dense or expert layers) and the pruned Llamas (NAS)."""

from __future__ import annotations

from longboat.catalog.families.attention import Heads, grouped_attention, heads_of
from longboat.catalog.families.decoder import shared_width
from longboat.catalog.families.feed_forward import dense, experts
from longboat.catalog.families.mixers import mamba
from longboat.catalog.families.parts import FeedForward, Mixer, Stack, as_prediction_head, join, linear
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.model_shape import Layer

__all__ = ("read_nemotron_h", "read_nemotron_nas")

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
WORDS = {"linear_attention": "mamba", "full_attention": "attention"}  # as transformers 5 writes them
NAS_WIDTH_MULTIPLE = 256


def read_nemotron_h(fields: Fields) -> Stack:
    """Read layers by ``hybrid_override_pattern`` or ``layers_block_type``."""
    kinds = _kinds(fields, "hybrid_override_pattern", "layers_block_type")
    if not kinds:
        fields.need("hybrid_override_pattern")
    head = [_hybrid(fields, kind) for kind in _kinds(fields, "mtp_hybrid_override_pattern", "mtp_layers_block_type")]
    modules = fields.count("num_nextn_predict_layers")
    return Stack(
        layers=tuple(_hybrid(fields, kind) for kind in kinds),
        prefix="backbone.",
        mtp=as_prediction_head(fields, head, num_modules=modules) if head and modules else (),
    )


def _kinds(fields: Fields, letters: str, words: str) -> tuple[str, ...]:
    if told := fields.words(words):
        return tuple(WORDS.get(word, word) for word in told)
    return tuple(LETTERS.get(letter, letter) for letter in fields.word(letters))


def _hybrid(fields: Fields, kind: str) -> Layer:
    hidden = fields.need("hidden_size")
    match kind:
        case "mamba":
            return join(mamba(fields, hidden), None, hidden)
        case "attention":
            return join(grouped_attention(hidden, heads_of(fields), name="mixer"), None, hidden)
        case "mlp":
            return join(None, dense(hidden, fields.need("intermediate_size"), name="mixer", gated=False), hidden)
        case _:
            return join(None, _experts(fields, hidden), hidden)


def _experts(fields: Fields, hidden: int) -> FeedForward:
    return experts(
        hidden,
        fields.need("moe_intermediate_size"),
        fields.need("n_routed_experts"),
        fields.need("num_experts_per_tok"),
        shared_width=shared_width(fields),
        name="mixer",
        gated=False,
        router_bias=True,
        latent=fields.count("moe_latent_size"),
    )


def read_nemotron_nas(fields: Fields) -> Stack:
    """Read layers by ``block_configs``: each has its own attention and width, or none."""
    blocks = fields.sections("block_configs")
    if not blocks:
        fields.need("block_configs")
    return Stack(layers=tuple(_pruned(fields, block) for block in blocks))


def _pruned(fields: Fields, block: Fields) -> Layer:
    hidden = fields.need("hidden_size")
    mixer = _pruned_attention(fields, block.section("attention"), hidden)
    feed_forward = _pruned_mlp(block.section("ffn"), hidden)
    return join(mixer, feed_forward, hidden * ((mixer is not None) + (feed_forward is not None)))


def _pruned_attention(fields: Fields, block: Fields, hidden: int) -> Mixer | None:
    if block.flag("no_op"):
        return None
    if block.flag("replace_with_linear"):
        return Mixer(weights=linear("self_attn.linear_attn", "attention", hidden, hidden))
    heads = heads_of(fields)
    grouped = Heads(
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_heads // block.need("n_heads_in_group"),
        key_dim=heads.key_dim,
        value_dim=heads.value_dim,
    )
    return grouped_attention(hidden, grouped, window_tokens=block.count("window_length"))


def _pruned_mlp(block: Fields, hidden: int) -> FeedForward | None:
    if block.flag("no_op"):
        return None
    if block.flag("replace_with_linear"):
        return FeedForward(weights=linear("mlp.linear_mlp", "mlp", hidden, hidden))
    width = int(2 * block.number("ffn_mult") * hidden / 3)
    return dense(hidden, -(-width // NAS_WIDTH_MULTIPLE) * NAS_WIDTH_MULTIPLE)
