"""The machines: nodes as the cluster reports them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ("Node",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine (or network namespace) of the cluster."""

    node_id: str  # Ray's node id, hex
    address: str  # IPv4 address by which the other nodes reach it
    hostname: str = ""
    num_cpus: float = 0.0  # total that the scheduler has on it
    num_gpus: float = 0.0  # total that the scheduler has on it

    memory_bytes: int = 0
    # key → value, as given to ``longboat node start --label`` or ``ray start --labels``
    labels: Mapping[str, str] = field(default_factory=dict)
    is_head: bool = False
    alive: bool = True
