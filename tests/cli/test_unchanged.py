"""Whether a file is of the fleet that runs, as the quick end of ``longboat up`` sees it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cli.cli_builders import gateway, replica, report
from cli.test_taking_down import SHAPE
from longboat.cli.fleet.unchanged import _means, _report_if_same
from longboat.cluster.fleet.deployed import ENDING
from longboat.cluster.fleet.serve_config import ShapedModel, serve_document
from longboat.cluster.protocol.names import CONTROLLER_APP
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet
from longboat.spec.policy import policy_of

FILE = "models: [{source: 'builtin:tiny', engine: fake, replicas: 2}]"


def test_a_fleet_that_a_down_began_to_end_is_not_the_one_that_runs() -> None:
    fleet = load_fleet(FILE, "x")
    shaped = [ShapedModel(spec=model, shape=SHAPE) for model in fleet.models]
    text = dump_fleet(fleet)
    document = serve_document(fleet, shaped, text, policy=policy_of(fleet.gateway, served=fleet.served()))
    apps = {app["name"]: {"status": "RUNNING", "deployed_app_config": app} for app in document["applications"]}
    seen = report(replica("tiny", "r1"), replica("tiny", "r2"), gateways=(gateway(),), document=text)
    session: Any = SimpleNamespace(apps=SimpleNamespace(all=lambda: apps), report=lambda: seen)
    assert _report_if_same(session, fleet) is seen
    (values,) = (o["user_config"] for o in apps[CONTROLLER_APP]["deployed_app_config"]["deployments"])
    values[ENDING] = True
    assert _report_if_same(session, fleet) is None


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
