"""Reads NVIDIA's hybrids: Nemotron-H (Mamba-2, attention, dense or expert layers) and the pruned Llamas (NAS).

Models that Puzzle pruned list their layers in ``block_configs``, each with its own sizes.
"""

from __future__ import annotations

from longboat.catalog.families.attention import Heads, grouped_attention, heads_of
from longboat.catalog.families.decoder import shared_width
from longboat.catalog.families.feed_forward import dense, experts
from longboat.catalog.families.mixers import mamba
from longboat.catalog.families.parts import FeedForward, Mixer, Stack, as_prediction_head, join, linear
from longboat.catalog.families.unread import unread_of
from longboat.catalog.formats.config_fields import Fields
from longboat.catalog.shape.model_shape import Layer
from longboat.catalog.shape.weight import Weight
from longboat.core.errors import UserInputError

__all__ = ("read_nemotron_h", "read_nemotron_nas")

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
WORDS = {"linear_attention": "mamba", "full_attention": "attention"}  # as transformers 5 writes them
NAS_WIDTH_MULTIPLE = 256
# What ``block_configs`` call the sizes of a Mamba-2 mixer, and Nemotron-H does.
STATE_NAMES = {
    "state_dim": "ssm_state_size",
    "num_heads": "mamba_num_heads",
    "head_dim": "mamba_head_dim",
    "num_groups": "n_groups",
}


def read_nemotron_h(fields: Fields) -> Stack:
    """Read layers by ``block_configs``, ``hybrid_override_pattern`` or ``layers_block_type``."""
    if blocks := fields.sections("block_configs"):
        return _read_blocks(fields, blocks)
    kinds = _kinds(fields, "hybrid_override_pattern", "layers_block_type")
    if not kinds:
        fields.need("hybrid_override_pattern")
    head = [_hybrid(fields, kind) for kind in _kinds(fields, "mtp_hybrid_override_pattern", "mtp_layers_block_type")]
    return Stack(
        layers=tuple(_hybrid(fields, kind) for kind in kinds), prefix="backbone.", mtp=_prediction(fields, head)
    )


def _prediction(fields: Fields, head: list[Layer]) -> tuple[Weight, ...]:
    modules = fields.count("num_nextn_predict_layers")
    return as_prediction_head(fields, head, num_modules=modules) if head and modules else ()


def _read_blocks(fields: Fields, blocks: tuple[Fields, ...]) -> Stack:
    """Read layers of which each writes its kind and the sizes in which it differs from the config (Puzzle)."""
    layers = tuple(_of_block(fields, block) for block in blocks)
    heads = fields.sections("mtp_block_configs")
    head = [_of_block(fields, block) for block in heads]
    return Stack(layers=layers, mtp=_prediction(fields, head), estimate=_doubts(fields, blocks, (*blocks, *heads)))


def _of_block(fields: Fields, block: Fields) -> Layer:
    kind = block.word("block_type")
    if kind not in LETTERS.values():
        raise UserInputError(
            f"config.json has a block_type {kind or 'without a name'} in block_configs, which is none of "
            f"{', '.join(LETTERS.values())}",
            hint="plan from the folder with the model's safetensors files: their headers list the weights",
        )
    own = Fields({**fields.values, **block.values}, fields.defaults, set())
    layer = _hybrid(own, kind)
    for section in (block, fields):
        section.seen.update(own.seen)
    return layer


def _doubts(fields: Fields, blocks: tuple[Fields, ...], parts: tuple[Fields, ...]) -> tuple[str, ...]:
    """Return what makes the count of such layers an estimate. parts: the sections that were read."""
    doubts = []
    if (told := fields.count("num_hidden_layers", default=len(blocks))) != len(blocks):
        doubts.append(f"config.json has {len(blocks)} block_configs and num_hidden_layers {told}: the former counts")
    if unread := tuple(dict.fromkeys(name for part in parts for name in unread_of(part))):
        doubts.append(f"block_configs have fields that were not read: {', '.join(unread)}")
    return tuple(doubts)


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
    blocks = fields.sections("block_configs") or _blocks_of_lists(fields)
    pairs = tuple((_flat(block.section("attention")), _flat(block.section("ffn"))) for block in blocks)
    layers = tuple(_pruned(fields, attention, ffn) for attention, ffn in pairs)
    for block in blocks:
        block.seen |= {"attention", "ffn"}
    present = tuple(
        part for pair in pairs for part in pair if not part.flag("no_op") | part.flag("replace_with_linear")
    )
    return Stack(layers=layers, estimate=_doubts(fields, blocks, (*blocks, *present)))


def _blocks_of_lists(fields: Fields) -> tuple[Fields, ...]:
    """Return blocks for a config of the first generation (DeciLM-7B), where layers differ in their heads only."""
    heads = fields.numbers("num_key_value_heads_per_layer")
    if not heads:
        fields.need("block_configs")
    width = fields.need("intermediate_size")
    return tuple(
        Fields({"attention": {"num_key_value_heads": count}, "ffn": {"intermediate_size": width}}) for count in heads
    )


def _flat(part: Fields) -> Fields:
    """Return the fields of a part of a block, with those of the mixer or the experts that it nests."""
    state = {STATE_NAMES.get(name, name): value for name, value in part.section("mamba").values.items()}
    values = {**part.values, **state, **part.section("moe").values}
    return Fields({name: value for name, value in values.items() if name not in ("mamba", "moe")})


def _pruned(fields: Fields, attention: Fields, ffn: Fields) -> Layer:
    hidden = fields.need("hidden_size")
    mixer = _pruned_attention(fields, attention, hidden)
    feed_forward = _pruned_mlp(fields, ffn, hidden)
    return join(mixer, feed_forward, hidden * ((mixer is not None) + (feed_forward is not None)))


def _pruned_attention(fields: Fields, block: Fields, hidden: int) -> Mixer | None:
    if block.flag("no_op"):
        return None
    if block.flag("replace_with_linear"):
        return Mixer(weights=linear("self_attn.linear_attn", "attention", hidden, hidden))
    if "ssm_state_size" in block:
        return mamba(block, hidden)
    heads = heads_of(fields)
    per_group = block.count("n_heads_in_group")
    kv_heads = block.count("num_key_value_heads") or heads.num_heads // (per_group or block.need("n_heads_in_group"))
    grouped = Heads(num_heads=heads.num_heads, num_kv_heads=kv_heads, key_dim=heads.key_dim, value_dim=heads.value_dim)
    bias = fields.flag("attention_bias")
    return grouped_attention(
        hidden, grouped, window_tokens=block.count("window_length"), bias=fields.flag("qkv_bias", bias), out_bias=bias
    )


def _pruned_mlp(fields: Fields, block: Fields, hidden: int) -> FeedForward | None:
    if block.flag("no_op"):
        return None
    if block.flag("replace_with_linear"):
        return FeedForward(weights=linear("mlp.linear_mlp", "mlp", hidden, hidden))
    if "num_local_experts" in block:
        return experts(
            hidden,
            block.need("expert_intermediate_dim"),
            block.need("num_local_experts"),
            block.need("num_experts_per_tok"),
            shared_width=block.count("shared_expert_intermediate_dim"),
        )
    return dense(hidden, _pruned_width(block, hidden), bias=fields.flag("mlp_bias"))


def _pruned_width(block: Fields, hidden: int) -> int:
    """Return the inner width: newer configs write it, older ones write a multiple of the hidden size."""
    factor = block.number("ffn_mult")
    if factor <= 0:
        return block.need("intermediate_size", "ffn_mult")
    return -(-int(2 * factor * hidden / 3) // NAS_WIDTH_MULTIPLE) * NAS_WIDTH_MULTIPLE
