"""Asks single nodes of the cluster through Ray: the node's daemon where it has one, else a task."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from longboat.cluster.preflight.checks import FORMAT, NodeFindings, PreflightRequest, inspect_node
from longboat.cluster.protocol.names import NAMESPACE, daemon_name

__all__ = ("inspect_nodes",)

_TIMEOUT_S = 60.0


def inspect_nodes(node_ids: Sequence[str], request: PreflightRequest, within_s: float = _TIMEOUT_S) -> dict[str, Any]:
    """Return what each node finds on itself, or the exception. A daemon answers without a new process.

    A task stands in for a daemon that is gone or of another version. One that is slow has the whole time.
    """
    import ray

    deadline_s = time.monotonic() + within_s
    answers = _answers(_asked_daemons(node_ids, request), within_s)
    done = [one for one, answer in answers.items() if isinstance(answer, NodeFindings | ray.exceptions.GetTimeoutError)]
    others = [node_id for node_id in node_ids if node_id not in done]
    return answers | _run_tasks(others, request, max(0.0, deadline_s - time.monotonic()))


def _run_tasks(node_ids: Sequence[str], request: PreflightRequest, within_s: float) -> dict[str, Any]:
    """Have a task look around on each node: Ray starts a worker for the job of this process there."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    remote: Any = ray.remote(num_cpus=0, max_retries=0)(inspect_node)
    refs = {
        node_id: remote.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False)).remote(request)
        for node_id in node_ids
    }
    return _answers(refs, within_s)


def _asked_daemons(node_ids: Sequence[str], request: PreflightRequest) -> dict[str, Any]:
    """Return the references of the daemons' answers; nothing for a node that has no daemon, or an older one."""
    import ray

    refs = {}
    for node_id in node_ids:
        try:
            refs[node_id] = ray.get_actor(daemon_name(node_id), namespace=NAMESPACE).inspect.remote(FORMAT, request)
        except (ValueError, AttributeError, ray.exceptions.RayError):
            continue
    return refs


def _answers(refs: Mapping[str, Any], within_s: float) -> dict[str, Any]:
    import ray

    deadline_s = time.monotonic() + within_s
    answers: dict[str, Any] = {}
    for node_id, ref in refs.items():
        try:
            answers[node_id] = ray.get(ref, timeout=max(0.0, deadline_s - time.monotonic()))
        except Exception as error:
            answers[node_id] = error
    return answers
