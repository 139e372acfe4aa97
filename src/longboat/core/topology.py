"""What the machines are: nodes as the cluster reports them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ("Node",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine (or network namespace) of the cluster.

    node_id: Ray's node id, hex
    address: IPv4 address by which the other nodes reach it
    num_cpus, num_gpus: what the scheduler has in total on it
    free_cpus, free_gpus: what is not taken; None where nobody knows
    labels: key → value, as given to ``longboat node start --label`` or ``ray start --labels``
    """

    node_id: str
    address: str
    hostname: str = ""
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    free_cpus: float | None = None
    free_gpus: float | None = None
    memory_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    is_head: bool = False
    alive: bool = True
