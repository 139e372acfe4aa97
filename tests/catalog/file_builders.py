"""Builders of headers of safetensors and GGUF files, without the numbers behind them."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

__all__ = ("gguf_header", "safetensors_header", "write_model")

SIZES = {"BF16": 2, "F16": 2, "F32": 4, "U8": 1, "I32": 4, "I64": 8, "F8_E4M3": 1}
Entry = tuple[str, str, Sequence[int]]


def safetensors_header(tensors: Iterable[Entry]) -> bytes:
    """Return length and JSON of a safetensors file with (name, dtype, shape) of each tensor."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape in tensors:
        start, end = end, end + math.prod(shape) * SIZES[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text


def write_model(folder: Path, config: Mapping[str, object] | None, *shards: Sequence[Entry]) -> Path:
    """Write a model's folder, with an index where there are several shards."""
    folder.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    if len(shards) == 1:
        (folder / "model.safetensors").write_bytes(safetensors_header(shards[0]))
        return folder
    names = [f"model-{index + 1:05d}-of-{len(shards):05d}.safetensors" for index in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        (folder / name).write_bytes(safetensors_header(shard))
    weight_map = {entry[0]: name for name, shard in zip(names, shards, strict=True) for entry in shard}
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def gguf_header(metadata: Mapping[str, object], tensors: Iterable[tuple[str, int, Sequence[int]]]) -> bytes:
    """Return a GGUF header, version 3, with (name, type number, shape outputs first) of each tensor."""
    listed = list(tensors)
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(listed), len(metadata))]
    parts += [_text(key) + _value(value) for key, value in metadata.items()]
    for name, kind, shape in listed:
        dimensions = b"".join(struct.pack("<Q", size) for size in reversed(shape))
        parts.append(_text(name) + struct.pack("<I", len(shape)) + dimensions + struct.pack("<IQ", kind, 0))
    return b"".join(parts)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: object) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case list():
            return _array(value)
    raise TypeError(value)


def _array(items: list[object]) -> bytes:
    if items and isinstance(items[0], str):
        return struct.pack("<IIQ", 9, 8, len(items)) + b"".join(_text(str(item)) for item in items)
    return struct.pack("<IIQ", 9, 4, len(items)) + b"".join(struct.pack("<I", int(str(item))) for item in items)
