"""What the end of `up`, and `down`, take with them."""

from __future__ import annotations

import pytest

from cli.fake_cluster import FakeSession, application
from longboat.cli.fleet.applied import Applied
from longboat.cli.fleet.down import ends_with
from longboat.cli.fleet.taken_down import FleetWatch, TakenDownError
from longboat.cli.fleet.up import hold
from longboat.cluster.host.record import ClusterRecord
from longboat.cluster.protocol.names import CONTROLLER_APP
from longboat.core.errors import ClusterError
from longboat.spec.files.load import load_fleet

FLEET = load_fleet("builtin:tiny", "x")


def record(**given: object) -> ClusterRecord:
    known = {"role": "head", "address": "127.0.0.1", "interface": "lo", "gcs_address": "127.0.0.1:6379"}
    folders = {"run": "/r", "temp_dir": "/r/ray", "token_file": "/r/token"}
    return ClusterRecord(**{**known, **folders, "started_by_up": True, **given})  # type: ignore[arg-type]


def test_up_that_started_nothing_does_not_stay(capsys: pytest.CaptureFixture[str]) -> None:
    hold(FakeSession({}), Applied(fleet=FLEET, text=""))
    out = capsys.readouterr().out
    assert "keeps running" in out
    assert "longboat down" in out
    assert "Ctrl-C" not in out


def test_up_says_what_ctrl_c_takes_down() -> None:
    assert Applied(fleet=FLEET, text="", started_fleet=True).fate.startswith("Ctrl-C takes it down")
    added = Applied(fleet=FLEET, text="", added=("b", "c"))
    assert added.holds_something
    assert "Ctrl-C takes down b, c; the other models keep running" in added.fate


def test_logs_can_be_asked_for_only_where_the_fleet_outlives_the_failure() -> None:
    assert not Applied(fleet=FLEET, text="", started_fleet=True).goal.outlives_failure
    assert Applied(fleet=FLEET, text="", added=("b",)).goal.outlives_failure


def test_the_local_cluster_ends_with_the_fleet_that_was_on_it() -> None:
    assert ends_with(record(), "127.0.0.1:6379")
    assert not ends_with(record(), "10.0.0.9:6379")
    assert not ends_with(record(started_by_up=False), "127.0.0.1:6379")
    assert not ends_with(None, "127.0.0.1:6379")


def watch(apps: dict[str, dict[str, object]], kept: list[bool]) -> tuple[FleetWatch, list[float]]:
    """A watch of a fleet on a clock of its own, and the seconds that it slept."""
    slept: list[float] = []
    return FleetWatch(FakeSession(apps).apps, lambda: kept.pop(0), clock=lambda: sum(slept), sleep=slept.append), slept


def test_a_fleet_that_another_command_took_down_is_held_no_longer() -> None:
    held, slept = watch({}, [True] * 100)
    with pytest.raises(TakenDownError):
        held.hold()
    assert len(slept) == 5, "asking Serve is dear"


def test_a_cluster_that_was_stopped_is_noticed_without_asking_it() -> None:
    held, slept = watch({CONTROLLER_APP: application(CONTROLLER_APP)}, [True] * 20 + [False])
    with pytest.raises(TakenDownError):
        held.hold()
    assert len(slept) == 21


def test_a_head_that_does_not_answer_may_come_back() -> None:
    class Silent:
        def has_fleet(self) -> bool:
            raise ClusterError("the dashboard does not answer")

    kept = [True] * 20 + [False]
    held = FleetWatch(Silent(), lambda: kept.pop(0), clock=iter(range(100)).__next__, sleep=lambda _: None)
    with pytest.raises(TakenDownError):
        held.hold()
    assert not kept
