"""Makes a shape from a model's config and the headers of its weights together, or from either alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.catalog.shape.from_tensors import shape_from_tensors, with_exact_weights
from longboat.catalog.shape.model_shape import ModelShape
from longboat.catalog.shape.named_size import with_named_size
from longboat.catalog.shape.tensors import Tensor
from longboat.core.errors import UserInputError

__all__ = ("shape_from_both",)

Config = Mapping[str, object]


def shape_from_both(config: Config, quantization: Config | None, name: str, tensors: Iterable[Tensor]) -> ModelShape:
    """Make a shape from all that is known of a model.

    quantization: the parsed hf_quant_config.json; tensors: none where no header was read
    Raises UserInputError where neither config nor tensors are enough.
    """
    tensors = list(tensors)
    try:
        shape = shape_from_config(config, name=name, quantization=quantization)
    except UserInputError as error:
        if not tensors:
            raise
        guessed = shape_from_tensors(tensors, name=name)
        return replace(guessed, estimate=(*guessed.estimate, error.message))
    return with_exact_weights(shape, tensors) if tensors else with_named_size(shape)
