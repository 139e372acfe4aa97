"""A node as Ray lists it, made a ``Node``. Imports no Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longboat.core.topology import Node

__all__ = ("read_node",)


def read_node(entry: Mapping[str, Any]) -> Node:
    """Read an entry of ``ray.nodes()``."""
    resources = entry["Resources"]
    return Node(
        node_id=entry["NodeID"],
        address=entry["NodeManagerAddress"],
        hostname=entry.get("NodeManagerHostname", ""),
        num_cpus=resources.get("CPU", 0.0),
        num_gpus=resources.get("GPU", 0.0),
        memory_bytes=int(resources.get("memory", 0)),
        labels=dict(entry.get("Labels") or {}),
        is_head="node:__internal_head__" in resources,
    )
