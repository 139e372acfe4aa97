"""What a fleet lacks after a restart of one of its nodes."""

from __future__ import annotations

import pytest

from longboat.hosts.plan.whole import lacking, ready_replicas


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
    before = ready_replicas(status(("a", "ready"), ("b", "placing"), a=1, b=1))
    assert lacking(before, status(("a", "ready"), a=1, b=1)) == {}
