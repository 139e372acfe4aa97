"""Asks single nodes of the cluster through Ray: the node's daemon where it has one, else a task."""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from longboat.cluster.preflight.checks import FORMAT, NodeFindings, PreflightRequest, inspect_node
from longboat.cluster.protocol.names import NAMESPACE, daemon_name

__all__ = ("Asking", "findings_of", "inspect_nodes")

_TIMEOUT_S = 60.0
Question = Future[Any]
"""It gets the answer later, or the exception."""


class Asking(Protocol):
    """The ways to ask a node."""

    def daemon(self, node_id: str) -> Question | None:
        """Ask the node's daemon, without a new process. None where there is no daemon."""

    def task(self, node_id: str) -> Question:
        """Have a task look around on the node: Ray starts a worker for the job of this process there."""


def inspect_nodes(node_ids: Sequence[str], request: PreflightRequest, within_s: float = _TIMEOUT_S) -> dict[str, Any]:
    """Return what each node finds on itself, or the exception."""
    return findings_of(node_ids, _ThroughRay(request), within_s)


def findings_of(node_ids: Sequence[str], asking: Asking, within_s: float) -> dict[str, Any]:
    """Return what each node finds on itself, or the exception.

    A task stands in at once for a daemon that is gone or of another version. One that is slow has the whole time.
    """
    deadline_s = time.monotonic() + within_s
    answered = queue.SimpleQueue[Question]()
    questions: dict[Question, str] = {}  # → the node
    by_daemon = set[Question]()
    answers: dict[str, Any] = {}

    def ask(node_id: str, question: Question) -> None:
        questions[question] = node_id
        question.add_done_callback(answered.put)

    for node_id in node_ids:
        question = asking.daemon(node_id)
        if question is not None:
            by_daemon.add(question)
        ask(node_id, asking.task(node_id) if question is None else question)
    while questions:
        try:
            question = answered.get(timeout=max(0.0, deadline_s - time.monotonic()))
        except queue.Empty:
            late = TimeoutError(f"no answer within {within_s:.0f} s")
            return answers | dict.fromkeys(questions.values(), late)
        node_id = questions.pop(question)
        answer = question.exception() or question.result()
        if question in by_daemon and not isinstance(answer, NodeFindings):
            ask(node_id, asking.task(node_id))
        else:
            answers[node_id] = answer
    return answers


class _ThroughRay:
    """The questions as calls of Ray."""

    def __init__(self, request: PreflightRequest) -> None:
        import ray

        self._request = request
        self._inspect: Any = ray.remote(num_cpus=0, max_retries=0)(inspect_node)

    def daemon(self, node_id: str) -> Question | None:
        import ray

        try:
            daemon = ray.get_actor(daemon_name(node_id), namespace=NAMESPACE)
            question: Question = daemon.inspect.remote(FORMAT, self._request).future()
            return question
        except (ValueError, AttributeError, ray.exceptions.RayError):
            return None

    def task(self, node_id: str) -> Question:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node_id, soft=False)
        question: Question = self._inspect.options(scheduling_strategy=there).remote(self._request).future()
        return question
