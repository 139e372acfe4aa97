"""Runs work on single nodes of the cluster, through Ray."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ("on_nodes",)

_TIMEOUT_S = 60.0


def on_nodes(
    node_ids: Sequence[str], work: Callable[..., Any], *args: object, within_s: float = _TIMEOUT_S
) -> dict[str, Any]:
    """Run ``work(*args)`` on each node; node id → its answer, or the exception.

    Work that does not end within ``within_s``, which all nodes share, counts as an exception too.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote = ray.remote(work)
    refs = {
        node_id: remote.options(
            num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)
        ).remote(*args)
        for node_id in node_ids
    }
    deadline_s = time.monotonic() + within_s
    answers: dict[str, Any] = {}
    for node_id, ref in refs.items():
        try:
            answers[node_id] = ray.get(ref, timeout=max(0.0, deadline_s - time.monotonic()))
        except Exception as error:
            answers[node_id] = error
    return answers
