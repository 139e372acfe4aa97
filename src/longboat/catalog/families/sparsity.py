"""Decides which layers of a mixture of experts are sparse."""

from __future__ import annotations

from longboat.catalog.formats.config_fields import EXPERT_FIELDS, Fields

__all__ = ("is_sparse", "num_experts")


def num_experts(fields: Fields) -> int:
    """Return the routed experts of a sparse layer; 0 for a dense model."""
    return fields.count(*EXPERT_FIELDS)


def is_sparse(fields: Fields, index: int) -> bool:
    """Return whether layer ``index`` has experts; beyond the last layer, the last kind continues."""
    if not num_experts(fields) or index in fields.numbers("mlp_only_layers"):
        return False
    if kinds := fields.words("mlp_layer_types"):
        return kinds[min(index, len(kinds) - 1)] == "sparse"
    if (listed := fields.numbers("moe_layers")) and fields.word("model_type").startswith("llama4"):
        return index in listed
    if (pattern := fields.numbers("moe_layer_freq")) or (pattern := fields.numbers("moe_layers")):
        return pattern[min(index, len(pattern) - 1)] == 1 if len(pattern) > 1 else index >= pattern[0]
    if step := fields.count("interleave_moe_layer_step"):
        return (index + 1) % step == 0
    if interval := fields.count("moe_layer_interval"):  # ERNIE 4.5
        last = fields.count("moe_layer_end_index", default=index)
        return int(fields.number("moe_layer_start_index")) <= index <= last and (index + 1) % interval == 0
    step = fields.count("decoder_sparse_step", "moe_layer_freq", default=1)
    shifted = "decoder_sparse_step" in fields
    return index >= fields.count("first_k_dense_replace", "num_dense_layers") and (index + shifted) % step == 0
