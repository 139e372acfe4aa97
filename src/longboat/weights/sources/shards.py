"""Checks that a source has all files that its index of weights names, before they are fetched."""

from __future__ import annotations

from typing import Final

import msgspec

from longboat.weights.pieces.manifest import Manifest
from longboat.weights.sources.storage import Storage
from longboat.weights.sources.storage_errors import lacking

__all__ = ("check_shards",)

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
MAX_INDEX_BYTES: Final = 128 << 20


class _Index(msgspec.Struct):
    """What the index says of weights."""

    weight_map: dict[str, str] = {}  # tensor → file


def check_shards(storage: Storage, manifest: Manifest) -> None:
    """Raise TransferError where the index names files that the source lacks. An upload may be under way.

    An index beside a single file of weights is a leftover, and one that cannot be read is left to the engine.
    """
    names = {file.path for file in manifest.files}
    if INDEX not in names or SINGLE in names:
        return
    try:
        index = msgspec.json.decode(storage.read_small(INDEX, MAX_INDEX_BYTES), type=_Index)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    if lacks := sorted(set(index.weight_map.values()) - names):
        raise lacking(manifest.source, lacks, f"upload what {INDEX} names, and fetch it again")
