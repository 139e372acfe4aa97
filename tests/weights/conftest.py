"""A storage, and homes of nodes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longboat.weights.fetch.fetcher import FetchOptions
from longboat.weights.fetch.node_weights import NodeWeights, WeightsOptions
from longboat.weights.sources.open_store import StorageOptions
from longboat.weights.swarm.swarm_link import SwarmAddress
from weights.range_server import RangeServer, serving

MakeNode = Callable[..., NodeWeights]
MIB = 1 << 20
WEIGHTS = random.Random(1).randbytes(20 * MIB)


@pytest.fixture
def storage() -> Iterator[RangeServer]:
    """A storage with a model of 6 pieces: 20 MiB of weights, and a small file."""
    with serving() as server:
        server.put("config.json", b"{}")
        server.put("model.safetensors", WEIGHTS)
        yield server


@pytest.fixture
def node(tmp_path: Path) -> MakeNode:
    """Makes nodes: ``node("a", swarm)``; the same name is the same disk."""

    def make(name: str = "a", swarm: SwarmAddress | None = None, **options: object) -> NodeWeights:
        settings = {"patience_s": 20.0, "parallel": 4, **options}
        disk_bytes = settings.pop("disk_bytes", None)
        return NodeWeights(
            tmp_path / name,
            WeightsOptions(
                storage=StorageOptions(stall_s=2.0, retries=0),
                fetch=FetchOptions(**settings),  # type: ignore[arg-type]
                disk_bytes=disk_bytes,  # type: ignore[arg-type]
            ),
            swarm,
            env={},
        )

    return make
