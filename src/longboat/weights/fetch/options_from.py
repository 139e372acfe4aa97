"""The fleet file's section ``weights``, as nodes use it."""

from __future__ import annotations

from longboat.spec.types.weights import WeightsSpec
from longboat.weights.fetch.fetcher import FetchOptions
from longboat.weights.fetch.node_weights import WeightsOptions
from longboat.weights.pieces.tracker import StorageLimits
from longboat.weights.sources.open_store import StorageOptions

__all__ = ("limits_from", "options_from")


def options_from(spec: WeightsSpec) -> WeightsOptions:
    """Return what one node does with the section."""
    return WeightsOptions(
        storage=StorageOptions(endpoint=spec.endpoint or "", region=spec.region or ""),
        fetch=FetchOptions(limits=limits_from(spec)),
        disk_bytes=spec.disk_bytes,
    )


def limits_from(spec: WeightsSpec) -> StorageLimits:
    """Return what all nodes together may ask the storage for."""
    return StorageLimits(requests=spec.limits.requests, bytes_per_s=spec.limits.bytes_per_s)
