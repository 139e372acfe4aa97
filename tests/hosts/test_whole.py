"""What a fleet lacks after a restart of one of its nodes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from longboat.core.errors import ClusterError
from longboat.hosts.plan.steps import Kind
from longboat.hosts.plan.whole import lacking, living_replicas
from longboat.hosts.remote import bring_up
from longboat.hosts.remote.bring_up import Failure, Raised


def status(*replicas: tuple[str, str], **wanted: int) -> dict[str, object]:
    return {"wanted": wanted, "replicas": [{"model": model, "phase": phase} for model, phase in replicas]}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (status(("a", "ready"), ("a", "ready"), ("b", "ready"), a=2, b=1), {}),
        (status(("a", "ready"), ("a", "starting"), a=2, b=1), {"a": 1, "b": 1}),
        (status(a=2, b=1), {"a": 2, "b": 1}),
    ],
    ids=["whole", "starting", "empty"],
)
def test_fleet_lacks_replicas_that_are_not_ready_again(now: dict[str, object], expected: dict[str, int]) -> None:
    assert lacking({"a": 2, "b": 1}, now) == expected


def test_replicas_that_the_fleet_wants_no_longer_are_not_waited_for() -> None:
    assert lacking({"a": 2, "gone": 1}, status(("a", "ready"), a=1)) == {}


def test_model_without_a_place_before_the_restart_is_not_waited_for() -> None:
    before = living_replicas(status(("a", "ready"), ("b", "placing"), a=1, b=1))
    assert lacking(before, status(("a", "ready"), a=1, b=1)) == {}


def test_a_replica_that_is_silent_for_a_moment_is_waited_for() -> None:
    before = living_replicas(status(("a", "suspect"), a=1))
    assert lacking(before, status(("a", "suspect"), a=1)) == {"a": 1}


class Node:
    """A host whose node is to restart."""

    def __init__(self, name: str, *, fails: bool = False) -> None:
        self.name, self.fails, self.restarts = name, fails, 0
        self.host = SimpleNamespace(plan=SimpleNamespace(has=lambda kind: kind is Kind.RESTART))

    def tell(self, host: str, what: str) -> None: ...

    async def live(self) -> None:
        self.restarts += 1
        if self.fails:
            raise ClusterError("it did not come back")


async def rolled(
    monkeypatch: pytest.MonkeyPatch, *nodes: Node, failed_before: str = ""
) -> tuple[list[str], list[str], Raised]:
    """Return which nodes restarted, and which wait for the next run. nodes: the head is the last"""
    monkeypatch.setattr(bring_up, "restart_worker", lambda head, worker: worker.live())
    raised = Raised(failures=[Failure(failed_before, ClusterError("no disk"))] if failed_before else [])
    waiting = await bring_up._roll(nodes[-1], nodes[:-1], raised)  # type: ignore[arg-type]
    return [node.name for node in nodes if node.restarts], [work.name for work in waiting], raised


async def test_after_a_restart_that_failed_the_others_keep_the_release_that_they_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    restarted, waiting, raised = await rolled(monkeypatch, Node("a"), Node("b", fails=True), Node("c"), Node("head"))
    assert (restarted, waiting) == (["a", "b"], ["c", "head"])
    assert [failure.host for failure in raised.failures] == ["b"]


async def test_a_host_that_failed_before_holds_no_other_back(monkeypatch: pytest.MonkeyPatch) -> None:
    restarted, waiting, _ = await rolled(monkeypatch, Node("a"), Node("b"), Node("head"), failed_before="a")
    assert (restarted, waiting) == (["b", "head"], [])
