"""Whether a file is of the fleet that runs, as the quick end of ``longboat up`` sees it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cli.cli_builders import gateway, replica, report
from cli.test_taking_down import SHAPE
from longboat.cli.fleet.unchanged import _means, _report_if_same
from longboat.cluster.fleet.deployed import ENDING
from longboat.cluster.fleet.serve_config import ShapedModel, serve_document
from longboat.cluster.protocol.messages import FleetReport
from longboat.cluster.protocol.names import CONTROLLER_APP
from longboat.core.states import ReplicaState
from longboat.core.topology import Node
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet
from longboat.spec.policy import policy_of
from longboat.spec.types.fleet import Fleet

FILE = "models: [{source: 'builtin:tiny', engine: fake, replicas: 2}]"


def _running() -> tuple[Fleet, str, dict[str, Any]]:
    """A fleet, its text, and Serve's applications for it."""
    fleet = load_fleet(FILE, "x")
    shaped = [ShapedModel(spec=model, shape=SHAPE) for model in fleet.models]
    text = dump_fleet(fleet)
    document = serve_document(fleet, shaped, text, policy=policy_of(fleet.gateway, served=fleet.served()))
    apps = {app["name"]: {"status": "RUNNING", "deployed_app_config": app} for app in document["applications"]}
    return fleet, text, apps


def _whole(*replicas: ReplicaState, text: str, **given: Any) -> FleetReport:
    """A report of these replicas on one node, whose gateway works."""
    return replace(
        report(*replicas, gateways=(gateway("n1"),), document=text), nodes=(Node(node_id="n1", address="h"),), **given
    )


def _session(apps: dict[str, Any], seen: FleetReport) -> Any:
    return SimpleNamespace(apps=SimpleNamespace(all=lambda: apps), report=lambda: seen)


def test_a_fleet_that_a_down_began_to_end_is_not_the_one_that_runs() -> None:
    fleet, text, apps = _running()
    seen = _whole(replica("tiny", "r1"), replica("tiny", "r2"), text=text)
    assert _report_if_same(_session(apps, seen), fleet) is seen
    (values,) = (o["user_config"] for o in apps[CONTROLLER_APP]["deployed_app_config"]["deployments"])
    values[ENDING] = True
    assert _report_if_same(_session(apps, seen), fleet) is None


def test_a_controller_that_has_just_started_is_enough_where_it_knows_all_that_is_wanted() -> None:
    fleet, text, apps = _running()
    one, two = replica("tiny", "r1"), replica("tiny", "r2")
    known = _whole(one, two, text=text, partial=True)
    assert _report_if_same(_session(apps, known), fleet) is known
    fewer = _whole(one, text=text, partial=True)
    assert _report_if_same(_session(apps, fewer), fleet) is None


def test_a_node_whose_gateway_has_not_reported_leaves_it_open_whether_something_is_to_change() -> None:
    fleet, text, apps = _running()
    seen = _whole(replica("tiny", "r1"), replica("tiny", "r2"), text=text)
    silent = replace(seen, nodes=(*seen.nodes, Node(node_id="n2", address="h2")))
    assert _report_if_same(_session(apps, silent), fleet) is None
    unlisted = replace(seen, nodes=())  # the controller has just started, or is of an older version
    assert _report_if_same(_session(apps, unlisted), fleet) is None


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (dump_fleet(load_fleet(FILE, "x")), True),
        ("models: [{replicas: 2, engine: {kind: fake}, source: 'builtin:tiny'}]", True),
        (FILE.replace("2", "3"), False),
    ],
    ids=["dumped", "written otherwise", "changed"],
)
def test_a_text_means_the_fleet_however_it_is_written(text: str, same: bool) -> None:
    assert _means(text, load_fleet(FILE, "x")) is same
