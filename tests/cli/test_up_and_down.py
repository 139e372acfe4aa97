"""What the end of `up`, and `down`, take with them."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from cli.fake_cluster import FakeSession, application
from longboat.cli.fleet import up
from longboat.cli.fleet.applied import Applied
from longboat.cli.fleet.down import ends_with
from longboat.cli.fleet.taken_down import FleetWatch, TakenDownError
from longboat.cli.fleet.up import hold
from longboat.cluster.host import ray_node, resume
from longboat.cluster.host.record import ClusterRecord, save_record
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


@pytest.mark.parametrize(
    ("theirs", "told"),
    [
        ("{name: longboat, models: [builtin:tiny, {name: b, source: builtin:tiny}]}", None),
        ("{name: longboat, models: [{name: tiny, source: builtin:tiny, context: 64}]}", "~ tiny.context: "),
        ("{name: longboat, models: [{name: b, source: builtin:tiny}]}", "that one runs: - tiny"),
        ("{name: other, models: [builtin:tiny]}", "that one runs: fleet other"),
    ],
    ids=["more", "changed", "gone", "another"],
)
def test_detached_up_fails_where_another_command_put_other_models_in_their_place(
    monkeypatch: pytest.MonkeyPatch, theirs: str, told: str | None
) -> None:
    def wait_ready(*_: object, on_replaced: Callable[[str], None], **__: object) -> None:
        on_replaced(theirs)

    def come_up(detach: bool) -> Applied:
        applied = Applied(fleet=FLEET, text="", started_fleet=True)
        console = Console(file=io.StringIO(), width=200)
        up._come_up(FakeSession({}), applied, console, 1.0, detach)
        return applied

    monkeypatch.setattr(up, "deploy", lambda *_: None)
    monkeypatch.setattr(up, "wait_ready", wait_ready)
    assert come_up(False).replaced_by == theirs
    if told is None:
        come_up(True)
        return
    with pytest.raises(ClusterError) as caught:
        come_up(True)
    assert told in caught.value.message
    assert "longboat up" in caught.value.hint


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


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the end of a node keeps its state, for each node that is ended."""
    found: list[bool] = []
    monkeypatch.setenv("LONGBOAT_RUN", str(tmp_path / "run"))
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(ray_node, "stop_node", lambda run=None, *, keep_state=False: found.append(keep_state))
    return found


@pytest.mark.parametrize("is_known", [False, True], ids=["new", "resumed"])
def test_only_a_cluster_that_this_up_made_is_its_to_end(
    is_known: bool, ended: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = record(run=os.environ["LONGBOAT_RUN"], env={})
    if is_known:
        save_record(here)
    monkeypatch.setattr(resume if is_known else ray_node, "resume_node" if is_known else "start_local", lambda: here)
    _, is_new = up._start_cluster(Console(file=io.StringIO()))
    assert is_new is not is_known


@pytest.mark.parametrize("is_known", [False, True], ids=["new", "resumed"])
def test_an_interrupt_while_the_cluster_is_resumed_loses_nothing(
    is_known: bool, ended: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    if is_known:
        save_record(record(run=os.environ["LONGBOAT_RUN"]))
    monkeypatch.setattr(resume if is_known else ray_node, "resume_node" if is_known else "start_local", interrupt)
    with pytest.raises(KeyboardInterrupt):
        up._start_cluster(Console(file=io.StringIO()))
    assert ended == ([] if is_known else [False])
