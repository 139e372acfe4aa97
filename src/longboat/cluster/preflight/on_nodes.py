"""Asks single nodes of the cluster through Ray: the node's daemon where it has one, else a task."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from longboat.cluster.preflight.checks import FORMAT, NodeFindings, PreflightRequest, inspect_node
from longboat.cluster.protocol.names import NAMESPACE, daemon_name

__all__ = ("Asking", "findings_of", "inspect_nodes")

_TIMEOUT_S = 60.0


class Asking(Protocol):
    """The ways to ask a node. A question stands for an answer that comes later."""

    def daemon(self, node_id: str) -> Any:
        """Ask the node's daemon, without a new process. Return the question; None where there is no daemon."""

    def task(self, node_id: str) -> Any:
        """Have a task look around on the node: Ray starts a worker for the job of this process there."""

    def next_of(self, questions: Sequence[Any], within_s: float) -> tuple[Any, Any] | None:
        """Return the first question that is answered, and its answer or exception; None after ``within_s``."""


def inspect_nodes(node_ids: Sequence[str], request: PreflightRequest, within_s: float = _TIMEOUT_S) -> dict[str, Any]:
    """Return what each node finds on itself, or the exception."""
    return findings_of(node_ids, _ThroughRay(request), within_s)


def findings_of(node_ids: Sequence[str], asking: Asking, within_s: float) -> dict[str, Any]:
    """Return what each node finds on itself, or the exception.

    A task stands in at once for a daemon that is gone or of another version. One that is slow has the whole time.
    """
    deadline_s = time.monotonic() + within_s
    questions: dict[Any, str] = {}  # → the node
    by_daemon = set[Any]()
    answers: dict[str, Any] = {}
    for node_id in node_ids:
        question = asking.daemon(node_id)
        if question is not None:
            by_daemon.add(question)
        questions[asking.task(node_id) if question is None else question] = node_id
    while questions:
        found = asking.next_of(list(questions), max(0.0, deadline_s - time.monotonic()))
        if found is None:
            late = TimeoutError(f"no answer within {within_s:.0f} s")
            return answers | dict.fromkeys(questions.values(), late)
        question, answer = found
        node_id = questions.pop(question)
        if question in by_daemon and not isinstance(answer, NodeFindings):
            questions[asking.task(node_id)] = node_id
        else:
            answers[node_id] = answer
    return answers


class _ThroughRay:
    """The questions as references of Ray."""

    def __init__(self, request: PreflightRequest) -> None:
        self._request = request

    def daemon(self, node_id: str) -> Any:
        import ray

        try:
            daemon = ray.get_actor(daemon_name(node_id), namespace=NAMESPACE)
            return daemon.inspect.remote(FORMAT, self._request)
        except (ValueError, AttributeError, ray.exceptions.RayError):
            return None

    def task(self, node_id: str) -> Any:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote: Any = ray.remote(num_cpus=0, max_retries=0)(inspect_node)
        there = NodeAffinitySchedulingStrategy(node_id, soft=False)
        return remote.options(scheduling_strategy=there).remote(self._request)

    def next_of(self, questions: Sequence[Any], within_s: float) -> tuple[Any, Any] | None:
        import ray

        done, _ = ray.wait(list(questions), num_returns=1, timeout=within_s)
        if not done:
            return None
        try:
            return done[0], ray.get(done[0])
        except Exception as error:
            return done[0], error
