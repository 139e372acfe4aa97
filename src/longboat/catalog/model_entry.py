"""Makes the shape of a model from its catalog entry."""

from __future__ import annotations

from collections.abc import Mapping

from longboat.catalog.entries import ModelEntry
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.catalog.shape.model_shape import ModelShape

__all__ = ("config_of", "shape_of_entry")


def shape_of_entry(entry: ModelEntry) -> ModelShape:
    """Return the shape of a model of the catalog, as its publisher's files store it."""
    return shape_from_config(config_of(entry), name=entry.name)


def config_of(entry: ModelEntry) -> dict[str, object]:
    """Return a config.json like the publisher's: lists written out, the language model beside the vision tower."""
    num_layers = entry.config.get("num_hidden_layers")
    config = _written_out(entry.config, num_layers if isinstance(num_layers, int) else 0)
    if not entry.vision:
        return config
    return {
        "architectures": config.get("architectures"),
        "model_type": config.get("model_type"),
        "text_config": config,
        "vision_config": dict(entry.vision),
    }


def _written_out(section: Mapping[str, object], num_layers: int) -> dict[str, object]:
    return {name: _value(value, num_layers) for name, value in section.items()}


def _value(value: object, num_layers: int) -> object:
    if not isinstance(value, dict):
        return value
    if isinstance(cycle := value.get("cycle"), list) and cycle:
        start, end = _items(value.get("start")), _items(value.get("end"))
        length = max(0, num_layers - len(start) - len(end))
        return [*start, *(cycle[index % len(cycle)] for index in range(length)), *end]
    if isinstance(runs := value.get("runs"), list):
        return [item for count, item in runs for _ in range(count)]
    return _written_out(value, num_layers)


def _items(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []
