"""What other commands change while `longboat up` plans, and while a drain is written, stays changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cli.test_keys import FLEET, OLD, Cluster
from cli.test_taking_down import SHAPE
from longboat.cli.fleet import drain
from longboat.cli.fleet.applied import Applied
from longboat.cli.fleet.deployment import current_policy, put_fleet
from longboat.cluster.counts.by_hand import read_holds
from longboat.cluster.fleet.deployed import ENDING, controller_values, document_with
from longboat.cluster.members.drains import Drains, read_drains, values_with_drains
from longboat.cluster.protocol.names import model_app_name
from longboat.cluster.ray.count_changes import change_hold
from longboat.cluster.ray.key_changes import remove_key
from longboat.core.errors import ClusterError
from longboat.spec.files.dump import dump_fleet

TEXT = dump_fleet(FLEET)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path))


def drain_gateway(cluster: Cluster) -> None:
    drain._change(cluster, lambda drains: replace(drains, gateways=drains.gateways | {"n"}))


def revoke(cluster: Cluster) -> None:
    remove_key(cluster, "old")


def pause(cluster: Cluster) -> None:
    change_hold(cluster, "tiny", "pause", by="x")


CHANGES: dict[str, tuple[Callable[[Cluster], None], Callable[[Cluster, dict[str, Any]], bool]]] = {
    "key": (revoke, lambda cluster, _: cluster.book().keys == ()),
    "drain": (drain_gateway, lambda _, values: read_drains(values).gateways == {"n"}),
    "count": (pause, lambda _, values: read_holds(values)["tiny"].paused),
}


def put(cluster: Cluster, seen: dict[str, Any]) -> None:
    put_fleet(cluster, Applied(fleet=FLEET, text=TEXT), current_policy(cluster, FLEET, ()), {"tiny": SHAPE}, {}, seen)


@pytest.mark.parametrize("kind", CHANGES)
def test_what_changed_after_up_planned_is_not_undone(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, (change, holds) = Cluster(), CHANGES[kind]
    seen = controller_values(cluster.apps.all())
    policy = current_policy(cluster, FLEET, ())
    change(cluster)
    put_fleet(cluster, Applied(fleet=FLEET, text=TEXT), policy, {"tiny": SHAPE}, {}, seen)
    assert holds(cluster, controller_values(cluster.apps.all()))


def test_up_knows_in_whose_place_its_fleet_was_put() -> None:
    cluster = Cluster()
    applied, policy = Applied(fleet=FLEET, text=TEXT), current_policy(cluster, FLEET, ())
    assert applied.goal.before is None
    running = str(controller_values(cluster.apps.all())["text"])
    put_fleet(cluster, applied, policy, {"tiny": SHAPE}, {}, {})
    assert applied.goal.before == {running, ""}


def test_up_ends_the_counts_by_hand_that_it_saw() -> None:
    cluster = Cluster()
    pause(cluster)
    put(cluster, controller_values(cluster.apps.all()))
    assert not read_holds(controller_values(cluster.apps.all()))


def test_writes_that_another_commands_document_won_over_are_made_again() -> None:
    cluster = Cluster()
    for change in (drain_gateway, lambda cluster: put(cluster, {})):
        cluster.lose_next_write = True
        change(cluster)
        assert read_drains(controller_values(cluster.apps.all())).gateways == {"n"}
    assert cluster.book() == OLD and model_app_name("tiny") in cluster.apps.all()


def test_drain_that_is_always_undone_is_an_error() -> None:
    cluster = Cluster()
    take = cluster._take

    def undone(document: dict[str, Any]) -> None:
        take(document)
        values = controller_values(cluster.apps.all())
        take(document_with(cluster.apps.all(), values_with_drains(values, Drains())))

    cluster.rest.put = undone  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match="keeps changing"):
        drain_gateway(cluster)


def put_what_was_read_before(cluster: Cluster) -> None:
    put(cluster, {name: value for name, value in controller_values(cluster.apps.all()).items() if name != ENDING})


@pytest.mark.parametrize("change", [revoke, drain_gateway, pause, put_what_was_read_before])
def test_no_command_changes_a_fleet_that_is_being_taken_down(change: Callable[[Cluster], None]) -> None:
    cluster = Cluster()
    cluster.apps.end_models()
    ending = controller_values(cluster.apps.all())
    with pytest.raises(ClusterError, match="being taken down"):
        change(cluster)
    cluster.apps.end_models()  # a second command of this kind
    assert controller_values(cluster.apps.all()) == ending


def test_up_brings_back_a_fleet_whose_end_it_saw() -> None:
    cluster = Cluster()
    cluster.apps.end_models()
    put(cluster, controller_values(cluster.apps.all()))
    assert ENDING not in controller_values(cluster.apps.all())
    assert model_app_name("tiny") in cluster.apps.all()
