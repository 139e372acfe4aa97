"""Tensors as the header of a file lists them, and the purpose of each by its name."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from longboat.catalog.shape.weight import Part, Shard

__all__ = ("Place", "Tensor", "part_of", "place_of", "shard_of")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One tensor of a file."""

    name: str
    shape: tuple[int, ...]  # as stored, outputs before inputs; copies of experts before both
    num_bytes: int  # bytes that it takes in the file
    dtype: str = ""
    num_numbers: int = 0  # numbers that it represents, where several are packed in one element; 0: as many as elements

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a tensor in the model."""

    layer: int | None  # None: to no layer
    module: str  # name of the module in the layer
    expert: int | None  # None: to no expert


LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|blk)\.(\d+)\.(.+)$")
EXPERT = re.compile(r"experts\.(\d+)\.")
# Endings of tensors that belong to a module: scales and packed forms of its weight.
SUFFIXES = re.compile(
    r"(?:\.weight)?\.(weight|bias|qweight|qzeros|scales|g_idx|weight_(?:packed|scale(?:_inv|_2)?|zero_point|shape|global_scale|g_idx)"
    r"|input_(?:scale|global_scale)|k_scale|v_scale|absmax|quant_map|nested_\w+|quant_state\S*|biases)$"
    r"|(?<=_proj)_(?:blocks|scales|bias)$"
)
TOWERS = re.compile(r"(^|\.)(visual|vision\w*|mm_projector|multi_modal_projector|audio\w*|v\.blk|mm)\.")
MTP = re.compile(r"(^|\.)(mtp|nextn)\.")
PARTS: tuple[tuple[str, Part], ...] = (
    (r"(_shexp|shared_expert)", "shared_experts"),
    (r"(experts\b|_exps\b|experts_)", "experts"),
    (r"(ffn_gate_inp|router|\bgate$|\bgate\.(?!proj)|e_score_correction)", "router"),
    (r"(norm|\bln_|layernorm)", "norm"),
    (r"(linear_attn|mamba|mixer|ssm_)", "mixer"),
    (r"(attn|attention|[qkvo]_proj)", "attention"),
    (r"(mlp|ffn|feed_forward|fc1|fc2|[wW][123]\b)", "mlp"),
)
COMPILED = tuple((re.compile(pattern), part) for pattern, part in PARTS)
ENDS: tuple[tuple[str, Part], ...] = (
    (r"(^|\.)(embed_tokens|wte|word_embeddings|token_embd|tok_embeddings|embed|embeddings)$", "embedding"),
    (r"^(lm_head|output|head|embed_out|model\.lm_head|language_model\.lm_head)$", "head"),
)
IN_NAMES = re.compile(r"(o_proj|out_proj|down_proj|attn_output|ffn_down\w*|\bw2|wo|dense_4h_to_h|fc2)$")
KV_NAMES = re.compile(r"([kv]_proj|attn_[kv])$")


def place_of(name: str) -> Place:
    """Return the place of a tensor; ``model.layers.3.mlp.experts.7.up_proj.weight`` is in layer 3, expert 7."""
    module = SUFFIXES.sub("", name)
    found = LAYER.search(module)
    if found is None or TOWERS.search(module):
        return Place(None, module, None)
    inner = found[2]
    expert = EXPERT.search(inner)
    return Place(int(found[1]), EXPERT.sub("experts.", inner), int(expert[1]) if expert else None)


def part_of(place: Place) -> Part:
    """Return the purpose of a module, by its name."""
    if TOWERS.search(place.module):
        return "vision"
    if MTP.search(place.module):
        return "mtp"
    if place.layer is None:
        for pattern, part in ENDS:
            if re.search(pattern, place.module):
                return part
    return next((part for pattern, part in COMPILED if pattern.search(place.module)), "other")


def shard_of(module: str, part: Part) -> Shard:
    """Return what tensor parallelism usually cuts of such a module."""
    if part in ("embedding", "head"):
        return "vocab"
    if part in ("norm", "router", "vision", "other"):
        return "replicated"
    if IN_NAMES.search(module):
        return "in"
    return "kv_heads" if KV_NAMES.search(module) else "out"
