"""Compares a model's count with the size that its name says (``Yi-34B``, ``Mixtral-8x7B``, ``pythia-410m``)."""

from __future__ import annotations

import re
from dataclasses import replace

from longboat.catalog.shape.model_shape import ModelShape, share_equal_layers
from longboat.catalog.shape.weight import Weight

__all__ = ("named_params", "with_named_size")

SIZE = re.compile(r"(?<![a-z0-9.])(\d{1,4}(?:\.\d+)?)([bmt])(?![a-z0-9])")
EXPERTS = re.compile(r"(?<![a-z0-9.])(\d{1,3})x(\d{1,4}(?:\.\d+)?)b(?![a-z0-9])")
# Llama 4 names the active parameters and the number of experts: ``17B-16E``.
ACTIVE = re.compile(r"\d+b-\d+e(?![a-z0-9])")
UNITS = {"m": 1e6, "b": 1e9, "t": 1e12}
# Names round down (Gemma 7B has 8.5 billion) more than up; names of experts multiply what the experts share.
LEAST, LEAST_OF_EXPERTS, MOST = 0.8, 0.5, 1.35


def named_params(name: str) -> tuple[float, bool]:
    """Return the parameters that a name says, and whether as a number of experts; 0 where it says nothing."""
    plain = name.lower().rsplit("/", 1)[-1]
    if found := EXPERTS.search(plain):
        return int(found[1]) * float(found[2]) * 1e9, True
    if ACTIVE.search(plain):
        return 0.0, False
    sizes = [float(number) * UNITS[unit] for number, unit in SIZE.findall(plain)]
    return max(sizes, default=0.0), False


def with_named_size(shape: ModelShape) -> ModelShape:
    """Return the shape, marked where its name says another size; the larger of both is planned with.

    What the name says beyond the count is added to the layers evenly, as weights of an unknown kind.
    """
    named, of_experts = named_params(shape.name)
    counted = shape.num_loaded_params
    if not named or not shape.layers:
        return shape
    told = f"the name says {named / 1e9:.4g} billion parameters, and config.json describes {counted / 1e9:.4g}"
    if min(counted, shape.num_params) > MOST * named:
        return replace(shape, estimate=(f"weights: {told}: counted as the config describes", *shape.estimate))
    if counted >= (LEAST_OF_EXPERTS if of_experts else LEAST) * named:
        return shape
    missing = round((named - counted) / len(shape.layers) / shape.hidden_size)
    extra = Weight(name="unread", part="mlp", rows=missing, columns=shape.hidden_size, shard="out")
    layers = share_equal_layers(replace(layer, weights=(*layer.weights, extra)) for layer in shape.layers)
    reason = f"weights: {told}: planned with {named / 1e9:.4g}, caches as the config describes"
    return replace(shape, layers=layers, estimate=(reason, *shape.estimate))
