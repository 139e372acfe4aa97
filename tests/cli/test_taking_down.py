"""A fleet comes down whatever state it is in."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from typing import Any

import pytest
from rich.console import Console

from cli.cli_builders import report
from cli.fake_cluster import FakeSession, application
from cli.test_up_and_down import FLEET, record
from longboat.cli.fleet.applied import Applied
from longboat.cli.fleet.down import end_cluster
from longboat.cli.fleet.teardown import take_down
from longboat.cli.shared.fleet_end import end_fleet
from longboat.cluster.fleet.applications import ControllerFailedError
from longboat.cluster.node.write_turn import writing
from longboat.cluster.protocol.names import CONTROLLER_APP, CONTROLLER_DEPLOYMENT, model_app_name
from longboat.core.errors import ClusterError
from longboat.core.plan import GangShape, RankResources

MODEL = FLEET.models[0]
SHAPE = GangShape(tensor=1, pipeline=1, num_nodes=1, resources=RankResources())


def session(status: str = "RUNNING", **daemons: bool) -> FakeSession:
    names = (model_app_name(MODEL.name), "theirs")
    apps = {name: application(name) for name in names}
    apps["gone"] = application("gone", "DELETING")
    return FakeSession({CONTROLLER_APP: application(CONTROLLER_APP, status, "no such module"), **apps}, daemons)


@pytest.mark.parametrize("status", ["RUNNING", "DEPLOYING", "DEPLOY_FAILED", "UNHEALTHY"])
def test_a_fleet_whose_controller_does_not_answer_comes_down(status: str, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = session(status, n1=True)
    end_fleet(fleet)
    assert set(fleet.serve.apps) == {"theirs"}
    assert fleet.ray.events == ["asked for no nodes", "shut down n1", "killed n1"]
    assert "without its controller" in capsys.readouterr().err


def test_a_change_under_way_brings_no_fleet_back_that_is_taken_down() -> None:
    fleet = session(n1=True)
    ending = threading.Thread(target=end_fleet, args=(fleet,))
    with writing():
        read = [app["deployed_app_config"] for app in fleet.serve.apps.values()]
        ending.start()
        time.sleep(0.3)  # in which it would write
        assert not fleet.serve.puts
        fleet.serve.put({"applications": read})
    ending.join(30)
    assert set(fleet.serve.apps) == {"theirs"}


def test_a_daemon_that_does_not_answer_is_ended_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = session(n1=False, n2=True)
    end_fleet(fleet)
    assert fleet.ray.events[1:] == ["killed n1", "shut down n2", "killed n2"]
    assert "no answer from nodes n1" in capsys.readouterr().err


def test_a_fleet_comes_down_where_the_autoscaler_cannot_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = session(n1=True)
    fleet.autoscaler_failure = "RaySystemError: gone"
    end_fleet(fleet)
    assert "killed n1" in fleet.ray.events
    assert "may still be asked for nodes (RaySystemError: gone)" in capsys.readouterr().err


def test_down_stops_the_local_cluster_even_where_serve_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    def connect() -> FakeSession:
        raise ClusterError("no cluster answers")

    stopped: list[bool] = []
    end_cluster(connect, record(), "127.0.0.1:6379", lambda: stopped.append(True))
    assert stopped
    assert "no cluster answers" in capsys.readouterr().err
    with pytest.raises(ClusterError, match="no cluster answers"):
        end_cluster(connect, record(), "10.0.0.9:6379", lambda: stopped.append(True))
    assert stopped == [True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
def test_down_that_is_interrupted_ends_the_fleet_first(number: signal.Signals) -> None:
    fleet = session(n1=True)
    put = fleet.serve.put

    def interrupted(document: dict[str, Any]) -> None:
        os.kill(os.getpid(), number)
        put(document)

    fleet.serve.put = interrupted  # type: ignore[method-assign]
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            end_cluster(lambda: fleet, None, "", lambda: None)
    finally:
        signal.signal(number, before)
    assert set(fleet.serve.apps) == {"theirs"} and "killed n1" in fleet.ray.events


def test_an_up_that_was_interrupted_before_serve_listed_the_fleet_takes_it_down() -> None:
    fleet = FakeSession({}, {"n1": True})
    take_down(fleet, Applied(fleet=FLEET, text="", started_fleet=True), Console(file=io.StringIO()))
    assert fleet.serve.puts[-1]["applications"] == []
    assert "killed n1" in fleet.ray.events


def test_a_controller_that_serve_gave_up_is_told_at_once_in_serves_words() -> None:
    with pytest.raises(ControllerFailedError, match="no such module") as caught:
        session("DEPLOY_FAILED").expect("x", timeout_s=3600)
    assert "longboat status" not in caught.value.hint
    assert "longboat down" in caught.value.hint


def test_a_document_that_another_command_replaced_at_once_is_waited_for_no_longer() -> None:
    fleet = session()
    deployment = {"name": CONTROLLER_DEPLOYMENT, "user_config": {"text": "newer"}}
    fleet.serve.apps[CONTROLLER_APP]["deployed_app_config"]["deployments"] = [deployment]
    fleet.report = lambda: report(document="newer")  # type: ignore[method-assign]
    fleet.expect("ours", timeout_s=3600)
    fleet.report = lambda: report(document="older")  # type: ignore[method-assign]
    with pytest.raises(ClusterError, match="did not come up"):
        fleet.expect("ours", timeout_s=0.01)


def test_a_controller_that_was_killed_is_waited_for() -> None:
    fleet = session("UNHEALTHY")
    with pytest.raises(ClusterError, match="no such module") as caught:
        fleet.report()
    assert "restarts by itself" in caught.value.hint
    with pytest.raises(ClusterError, match="did not come up"):
        fleet.expect("x", timeout_s=0.01)


def test_a_controller_that_is_late_is_waited_for_and_then_told_without_longboat_status() -> None:
    with pytest.raises(ClusterError, match="did not come up") as caught:
        session("DEPLOYING").expect("x", timeout_s=0.01)
    assert "longboat status" not in caught.value.hint
