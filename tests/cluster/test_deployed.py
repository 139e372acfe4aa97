"""What is read from, and changed in, what Serve runs."""

from __future__ import annotations

from typing import Any

import pytest

from longboat.cluster.fleet.deployed import (
    SCALED_FROM_OUTSIDE,
    controller_values,
    document_with,
    key_book_in,
    values_with_keys,
)
from longboat.cluster.fleet.serve_config import controller_document, serve_document
from longboat.cluster.protocol.names import CONTROLLER_APP, model_app_name
from longboat.core.errors import ClusterError
from longboat.core.policy import KeyRecord
from longboat.spec.files.keys_file import KeyBook
from longboat.spec.files.load import load_fleet
from longboat.spec.policy import policy_of

FLEET = load_fleet("{models: [builtin:tiny], gateway: {auth: keys}}", "x")
BOOK = KeyBook(salt="s", keys=(KeyRecord(key_id="k", tenant="default", sha256="0" * 64),))


def running(**status: str) -> dict[str, dict[str, Any]]:
    """Serve's applications: the controller, a model, and one that is not ours."""
    policy = policy_of(FLEET.gateway, BOOK.keys, BOOK.salt)
    document = serve_document(FLEET, (), "text", policy=policy, others=[{"name": "other"}])
    document["applications"].append({"name": model_app_name("tiny"), "args": {"digest": "d"}, **SCALED_FROM_OUTSIDE})
    apps = {app["name"]: {"status": "RUNNING", "deployed_app_config": app} for app in document["applications"]}
    return {name: {**app, "status": status.get(name, "RUNNING")} for name, app in apps.items()}


def test_controller_values_are_what_it_was_told() -> None:
    values = controller_values(running())
    assert values == controller_document(FLEET, "text", policy_of(FLEET.gateway, BOOK.keys, BOOK.salt))
    assert key_book_in(values) == BOOK


def test_there_are_no_values_without_a_fleet() -> None:
    assert controller_values({}) == {}
    assert controller_values(running(**{CONTROLLER_APP: "DELETING"})) == {}
    with pytest.raises(ClusterError, match="no fleet"):
        document_with({}, {})


def test_other_keys_change_nothing_but_the_controllers_values() -> None:
    apps = running()
    values = values_with_keys(controller_values(apps), KeyBook(salt="s"))
    document = document_with(apps, values)
    before = {name: app["deployed_app_config"] for name, app in apps.items()}
    after = {app["name"]: app for app in document["applications"]}
    assert after.keys() == before.keys()
    assert [name for name in after if after[name] != before[name]] == [CONTROLLER_APP]
    told = after[CONTROLLER_APP]["deployments"][0]["user_config"]
    assert told["policy"]["keys"] == []
    assert {**told, "policy": None} == {**controller_values(apps), "policy": None}


def test_an_application_that_is_being_deleted_is_not_deployed_again() -> None:
    apps = running(other="DELETING")
    document = document_with(apps, controller_values(apps))
    assert "other" not in {app["name"] for app in document["applications"]}


def test_a_model_that_was_deployed_without_scaling_can_be_scaled_from_then_on() -> None:
    apps = running()
    del apps[model_app_name("tiny")]["deployed_app_config"]["external_scaler_enabled"]
    after = {app["name"]: app for app in document_with(apps, controller_values(apps))["applications"]}
    assert after[model_app_name("tiny")]["external_scaler_enabled"]
    assert "external_scaler_enabled" not in after["other"]
