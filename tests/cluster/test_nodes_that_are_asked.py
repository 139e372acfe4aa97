"""Nodes are asked what is on them: by their daemons, or by tasks where these are gone."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from longboat.cluster.preflight.checks import NodeFindings
from longboat.cluster.preflight.on_nodes import findings_of

FOUND = NodeFindings(hostname="n")


@dataclass
class Nodes:
    """Nodes by what their daemons answer, where they have one: "hangs" never comes, and an older one answers None."""

    daemons: dict[str, Any]
    asked: list[str] = field(default_factory=list)

    def daemon(self, node_id: str) -> Future[Any] | None:
        return answered(self.daemons[node_id]) if node_id in self.daemons else None

    def task(self, node_id: str) -> Future[Any]:
        self.asked.append(node_id)
        return answered(FOUND)


def answered(answer: Any) -> Future[Any]:
    question = Future[Any]()
    if isinstance(answer, Exception):
        question.set_exception(answer)
    elif answer != "hangs":
        question.set_result(answer)
    return question


def test_tasks_stand_in_for_daemons_that_are_gone_while_another_hangs() -> None:
    nodes = Nodes({"slow": "hangs", "gone": RuntimeError("the actor died"), "older": None, "well": FOUND})
    answers = findings_of([*nodes.daemons, "never"], nodes, 0.1)
    assert {name for name, answer in answers.items() if answer is FOUND} == {"never", "older", "gone", "well"}
    assert isinstance(answers["slow"], TimeoutError)
    assert sorted(nodes.asked) == ["gone", "never", "older"]


def test_no_task_stands_in_for_a_daemon_that_answers() -> None:
    nodes = Nodes({"a": FOUND, "b": FOUND})
    assert findings_of(["a", "b"], nodes, 0.1) == {"a": FOUND, "b": FOUND}
    assert not nodes.asked
