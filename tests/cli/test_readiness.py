"""What `up` waits for, what it tells meanwhile, and when it gives up."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pytest
from rich.console import Console

from cli.cli_builders import DOCUMENT, failure, gateway, replica, report
from longboat.cli.fleet.readiness import Goal, Watch, is_ready, wait_ready
from longboat.cluster.protocol.messages import FleetReport, ModelCount
from longboat.core.errors import ClusterError, EngineError
from longboat.core.states import Phase
from longboat.core.topology import Node

GOAL = Goal(document=DOCUMENT, wanted={"a": 1}, digests={"a": "d"})
PORT_TAKEN = "the gateway of one did not start: port 8000 is in use"


@dataclass
class FakeFleet:
    """A fleet whose report depends on the time; waiting costs none."""

    report_at: Callable[[float], FleetReport | None]
    given_up_models: Mapping[str, str] = field(default_factory=dict)
    now_s: float = 0.0
    replaced: list[str] = field(default_factory=list)

    def try_report(self) -> FleetReport | None:
        return self.report_at(self.now_s)

    def given_up(self) -> Mapping[str, str]:
        return self.given_up_models

    def clock(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


def wait(fleet: FakeFleet, goal: Goal = GOAL, timeout_s: float = 1800.0) -> str:
    """What is printed without a terminal."""
    console = Console(file=io.StringIO(), width=200)
    note = fleet.replaced.append
    try:
        wait_ready(fleet, goal, console, timeout_s, clock=fleet.clock, sleep=fleet.sleep, on_replaced=note)
    finally:
        text = console.file.getvalue()  # type: ignore[attr-defined]
        fleet.printed = text  # type: ignore[attr-defined]
    return str(text)


def test_model_that_another_command_started_may_fail_meanwhile() -> None:
    def at(now_s: float) -> FleetReport:
        phase = Phase.LOADING if now_s < 5 else Phase.READY
        return report(replica(phase=phase), gateways=(gateway(),), failures=(failure("b", f"r{now_s:.1f}"),))

    assert wait(FakeFleet(at)).splitlines() == ["a r1 loading", "a r1 ready"]


def test_a_fleet_that_another_command_changes_meanwhile_is_waited_for_as_it_is_then() -> None:
    def at(now_s: float) -> FleetReport:
        if now_s < 5:
            return report(replica(phase=Phase.LOADING), gateways=(gateway(),))
        digests = ("old", "old") if now_s < 9 else ("old", "other") if now_s < 12 else ("other", "other")
        ready = [replica(name=f"r{number}", digest=digest) for number, digest in enumerate(digests)]
        count = ModelCount(wanted=2, by="file", since_s=0.0)
        found = report(*ready, gateways=(gateway(),))
        updating = {"a": "other"} if now_s < 15 else {}
        return replace(found, document="as another command wrote it", counts={"a": count}, updating=updating)

    fleet = FakeFleet(at)
    told = wait(fleet, replace(GOAL, wanted={"a": 1, "b": 1}, digests={"a": "d", "b": "d"})).splitlines()
    changed = "another command changed the fleet: it does not have b any more; waiting until that is ready"
    assert told.count(changed) == 1
    assert told[-1] == "a r1 ready"
    assert fleet.now_s >= 12
    assert fleet.replaced == ["as another command wrote it"]


def test_a_fleet_whose_place_another_takes_before_it_was_seen_is_not_waited_for() -> None:
    def at(now_s: float) -> FleetReport:
        found = report(replica(digest="other"), gateways=(gateway(),))
        count = ModelCount(wanted=1, by="file", since_s=0.0)
        text = "as it was before" if now_s < 5 else "as another command wrote it"
        return replace(found, document=text, counts={"a": count})

    fleet = FakeFleet(at)
    told = wait(fleet, replace(GOAL, digests={"a": "d"}, before=frozenset({"as it was before"}))).splitlines()
    assert told == ["another command changed the fleet; waiting until that is ready", "a r1 ready"]
    assert 5 <= fleet.now_s < 30


def test_an_update_of_another_command_that_is_taken_back_is_no_ready_fleet() -> None:
    def at(now_s: float) -> FleetReport:
        if now_s < 5:
            return report(replica(phase=Phase.LOADING), gateways=(gateway(),))
        count = ModelCount(wanted=1, by="file", since_s=0.0)
        found = replace(report(replica(digest="old"), gateways=(gateway(),)), document="another", counts={"a": count})
        if now_s < 9:
            return replace(found, updating={"a": "other"})
        return replace(found, taken_back={"a": ("other", "it does not load")})

    with pytest.raises(EngineError, match="the update of model a failed and was rolled back: it does not load"):
        wait(FakeFleet(at))


STARTED = replace(GOAL, started="a")


def test_started_model_is_waited_for_while_other_commands_change_the_fleet() -> None:
    def at(now_s: float) -> FleetReport:
        phase = Phase.LOADING if now_s < 5 else Phase.READY
        found = report(replica(phase=phase), gateways=(gateway(),))
        return replace(found, document="as another command wrote it", started={"a": {}})

    assert wait(FakeFleet(at), STARTED).splitlines() == ["a r1 loading", "a r1 ready"]


def test_started_model_that_another_command_ends_is_not_waited_for() -> None:
    fleet = FakeFleet(lambda _: replace(report(gateways=(gateway(),)), document="without it"))
    with pytest.raises(ClusterError, match="a was ended by another command"):
        wait(fleet, STARTED)


def test_phases_are_told_once_each_until_all_is_ready() -> None:
    def at(now_s: float) -> FleetReport:
        phase = Phase.LOADING if now_s < 5 else Phase.READY
        return report(replica(phase=phase), gateways=(gateway(),))

    assert wait(FakeFleet(at)).splitlines() == ["a r1 loading", "a r1 ready"]


def test_a_gateway_that_cannot_start_is_told_and_given_up_long_before_the_timeout() -> None:
    fleet = FakeFleet(lambda _: report(replica(), gateways=(gateway("one", problem=PORT_TAKEN),)))
    with pytest.raises(ClusterError) as caught:
        wait(fleet)
    assert 20 <= fleet.now_s < 25
    assert "one (10.0.0.1)" in caught.value.message
    assert PORT_TAKEN in caught.value.message
    assert "gateway.log" in caught.value.hint
    assert f"gateway on one (10.0.0.1): {PORT_TAKEN}" in fleet.printed  # type: ignore[attr-defined]


def test_a_gateway_that_recovers_in_time_is_waited_for() -> None:
    def at(now_s: float) -> FleetReport:
        return report(replica(), gateways=(gateway(problem=PORT_TAKEN) if now_s < 15 else gateway(),))

    assert "r1 ready" in wait(FakeFleet(at))


def test_a_problem_that_changes_is_a_new_one() -> None:
    watch = Watch(GOAL)
    for now_s, problem in ((0, "x"), (15, "y"), (30, "y")):
        assert watch.see(report(gateways=(gateway(problem=problem),)), {}, now_s) is None
    assert watch.see(report(gateways=(gateway(problem="y"),)), {}, 35) is not None


def test_a_busy_node_whose_gateway_runs_is_waited_for() -> None:
    silent = gateway(problem="node does not answer (TimeoutError)", pid=7)
    watch = Watch(GOAL)
    assert [watch.see(report(gateways=(silent,)), {}, now_s) for now_s in (0, 100, 1000)] == [None] * 3


def test_a_node_that_never_spoke_gets_more_time() -> None:
    unknown = gateway(problem="node does not answer (TimeoutError)", address="", hostname="")
    watch = Watch(GOAL)
    assert [watch.see(report(gateways=(unknown,)), {}, now_s) for now_s in (0, 30, 59)] == [None] * 3
    assert isinstance(watch.see(report(gateways=(unknown,)), {}, 60), ClusterError)


def test_a_replica_of_the_changed_model_does_not_count() -> None:
    assert is_ready(report(replica(), gateways=(gateway(),)), GOAL)
    assert not is_ready(report(replica(digest="old"), gateways=(gateway(),)), GOAL)
    assert not is_ready(report(replica()), GOAL)
    nodes = tuple(Node(node_id=name, address=name) for name in ("n1", "n2"))
    assert is_ready(replace(report(replica(), gateways=(gateway("n1"), gateway("n2"))), nodes=nodes), GOAL)
    assert not is_ready(replace(report(replica(), gateways=(gateway("n1"),)), nodes=nodes), GOAL)


def test_a_model_is_given_up_after_three_of_its_replicas_failed() -> None:
    watch = Watch(GOAL)
    errors = [watch.see(report(failures=(failure(name=name),)), {}, 0) for name in ("r1", "r1", "r2", "r3")]
    assert errors[:3] == [None] * 3
    assert isinstance(errors[3], EngineError)
    assert errors[3].log_tail == ("last words",)


def test_a_failure_names_the_log_file_and_its_host() -> None:
    failed = report(failures=(failure(log_path="/run/logs/a/r1/rank0.log"),))
    error = Watch(GOAL).see(failed, {"a": "deploy failed"}, 0)
    assert error is not None
    assert "it broke" in error.message
    assert "/run/logs/a/r1/rank0.log on one" in error.hint
    assert "longboat logs" not in error.hint


def test_a_failure_points_to_longboat_logs_where_the_fleet_stays_up() -> None:
    error = Watch(replace(GOAL, outlives_failure=True)).see(report(failures=(failure(),)), {"a": "x"}, 0)
    assert error is not None
    assert "longboat logs a" in error.hint


def test_a_model_that_serve_refuses_is_told_in_its_words() -> None:
    error = Watch(GOAL).see(report(), {"a": "no such deployment"}, 0)
    assert error is not None
    assert "no such deployment" in error.message


def test_the_timeout_says_what_is_behind() -> None:
    fleet = FakeFleet(lambda _: report(replica(phase=Phase.LOADING), gateways=(gateway(),)))
    with pytest.raises(ClusterError, match="not ready after 10 s: model a has 0 of 1 replicas"):
        wait(fleet, timeout_s=10)


def test_a_controller_that_never_answers_is_an_error() -> None:
    with pytest.raises(ClusterError, match="does not answer"):
        wait(FakeFleet(lambda _: None), timeout_s=10)


def test_a_gateway_that_has_not_heard_of_the_replica_is_waited_for() -> None:
    assert not is_ready(report(replica(), gateways=(gateway(), gateway("n2", table_version=0))), GOAL)
    assert not is_ready(report(replica(), gateways=(gateway(epoch="an earlier controller", table_version=9),)), GOAL)
