"""What a fleet lacks after a restart of one of its nodes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from longboat.core.errors import ClusterError
from longboat.hosts.plan.steps import Kind
from longboat.hosts.plan.whole import lacking, living_replicas
from longboat.hosts.remote import bring_up
from longboat.hosts.remote.bring_up import Raised


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

    def __init__(self, name: str, *, fails: bool = False, kind: Kind = Kind.RESTART, installs: bool = True) -> None:
        self.name, self.fails, self.installs, self.restarts, self.told = name, fails, installs, 0, ""
        host = SimpleNamespace(role="head" if name == "head" else "worker")
        self.host = SimpleNamespace(plan=SimpleNamespace(has=lambda other: other is kind, host=host))

    def tell(self, host: str, what: str) -> None:
        self.told = what

    async def install(self) -> None:
        if not self.installs:
            raise ClusterError("no disk")

    async def finish(self) -> None: ...

    async def live(self) -> None:
        self.restarts += 1
        if self.fails:
            raise ClusterError("it did not come back")


async def worked(monkeypatch: pytest.MonkeyPatch, *nodes: Node) -> tuple[list[str], list[str], list[str]]:
    """Return which nodes started or restarted, which wait for the next run, and which failed."""
    monkeypatch.setattr(bring_up, "restart_worker", lambda head, worker: worker.live())
    raised = Raised()
    await bring_up._work(nodes, raised)  # type: ignore[arg-type]
    waiting = [node.name for node in nodes if node.told == "waits for the next run"]
    return [node.name for node in nodes if node.restarts], waiting, [failure.host for failure in raised.failures]


async def test_after_a_restart_that_failed_the_others_keep_the_release_that_they_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await worked(monkeypatch, Node("a"), Node("b", fails=True), Node("c"), Node("head"))
    assert found == (["a", "b"], ["c", "head"], ["b"])


async def test_after_a_start_that_failed_with_the_release_no_node_that_runs_is_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node that the last run could not restart is down, and would not come up in this run either."""
    down = Node("a", fails=True, kind=Kind.START)
    assert await worked(monkeypatch, down, Node("b"), Node("head")) == (["a"], ["b", "head"], ["a"])


async def test_a_host_that_failed_before_holds_no_other_back(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await worked(monkeypatch, Node("a", installs=False), Node("b"), Node("head"))
    assert found == (["b", "head"], [], ["a"])
