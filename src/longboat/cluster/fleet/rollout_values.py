"""Updates in the documents of Serve and the controller: begun by a command, ended by the controller. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from longboat.cluster.counts.by_hand import HOLDS
from longboat.cluster.fleet.deployed import (
    Applications,
    controller_values,
    counts_in_force,
    document_with,
    key_book_in,
    values_with_keys,
)
from longboat.cluster.fleet.rollouts import Step, StepKind
from longboat.cluster.fleet.serve_config import digests_in
from longboat.cluster.fleet.started import STARTED
from longboat.cluster.protocol.names import CONTROLLER_APP, SUPERVISOR_DEPLOYMENT, model_app_name

__all__ = ("document_after", "is_in_force", "values_since", "with_rollouts")


def with_rollouts(
    document: dict[str, Any], told: Mapping[str, Any], before: Mapping[str, Mapping[str, Any]], dashboard: str
) -> dict[str, Any]:
    """Return ``document`` with what the controller needs to complete updates, even without this process.

    Keys, drains, counts by hand and marks of started models are those that the controller got last.

    told: the values that the controller got last; before: model → its application as it runs now
    dashboard: where the controller finds Serve's REST API
    """
    digests = digests_in(document)
    applications = {app["name"]: app for app in document["applications"]}
    values = applications[CONTROLLER_APP]["deployments"][0]["user_config"]
    rollouts = {}
    for model, digest in digests.items():
        good = _good(model, told, before)
        if good is not None and good["args"]["digest"] != digest:
            surge = bool(values["updates"][model]["surge"])
            rollouts[model] = {"digest": digest, "previous": dict(good), "surge": surge}
    taken_back = {
        model: entry for model, entry in told.get("taken_back", {}).items() if digests.get(model, entry[0]) != entry[0]
    }
    values |= {
        "dashboard": dashboard,
        "rollouts": rollouts,
        "taken_back": taken_back,
        "drains": dict(told.get("drains", {})),
    }
    for part in (HOLDS, STARTED):
        if kept := {model: entry for model, entry in told.get(part, {}).items() if model in values["models"]}:
            values[part] = kept
    if book := key_book_in(told):
        values |= values_with_keys(values, book)
    return document


def values_since(values: Mapping[str, Any], seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the controller's values without the counts by hand, failed updates and marks that ``seen`` has too."""
    newer = {}
    for part in (HOLDS, STARTED, "taken_back"):
        before = seen.get(part, {})
        newer[part] = {model: entry for model, entry in values.get(part, {}).items() if before.get(model) != entry}
    return {**values, **newer} if values else {}


def is_in_force(document: Mapping[str, Any], apps: Applications) -> bool:
    """Return whether Serve has what ``document`` says, as far as other commands write it too."""
    there = [config for app in apps.values() if (config := app.get("deployed_app_config"))]
    return _told_in({"applications": there}) == _told_in(document)


def _told_in(document: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    values = controller_values({app["name"]: {"deployed_app_config": app} for app in document["applications"]})
    parts = {part: values.get(part) for part in ("text", "policy", "drains", HOLDS, STARTED)}
    return json.dumps(parts, sort_keys=True), digests_in(document)


def document_after(apps: Applications, step: Step) -> dict[str, Any] | None:
    """Return what Serve is to run after ``step``; None where the update is not on any more."""
    values = controller_values(apps)
    rollouts = dict(values.get("rollouts", {}))
    entry = rollouts.pop(step.model, None)
    if entry is None or entry["digest"] != step.digest:
        return None
    name = model_app_name(step.model)
    app = _as_in_force(apps[name]["deployed_app_config"], counts_in_force(apps).get(step.model, 0))
    if step.kind is StepKind.ONE_BY_ONE:
        if _is_starting(apps[name]):
            return None
        rollouts[step.model] = {**entry, "surge": False}
        app = {**app, "deployments": [_without_surge(o) for o in app["deployments"]]}
    elif step.kind is StepKind.TAKE_BACK:
        app = {**entry["previous"], "deployments": app["deployments"]}
        values["taken_back"] = {**values.get("taken_back", {}), step.model: [step.digest, step.why]}
    return document_with(apps, {**values, "rollouts": rollouts}, {name: app})


def _good(model: str, told: Mapping[str, Any], before: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the application that last worked: an update that is still under way has not proved itself."""
    running = before.get(model)
    entry = told.get("rollouts", {}).get(model)
    if running is not None and entry is not None and entry["digest"] == running["args"]["digest"]:
        previous: Mapping[str, Any] = entry["previous"]
        return previous
    return running


def _is_starting(app: Mapping[str, Any]) -> bool:
    """Return whether a replica has a place already but was not heard yet."""
    replicas = [r for d in (app.get("deployments") or {}).values() for r in d.get("replicas") or ()]
    return any(replica.get("state") == "STARTING" and replica.get("node_id") for replica in replicas)


def _as_in_force(app: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Return an application with the number of replicas that it has now: its document may tell an older one."""
    more = {"num_replicas": count} if count else {}
    overrides = [{**o, **more} if o.get("name") == SUPERVISOR_DEPLOYMENT else o for o in app["deployments"]]
    return {**app, "deployments": overrides}


def _without_surge(override: Mapping[str, Any]) -> dict[str, Any]:
    surge = {"max_surge_percent": 0} if override.get("name") == SUPERVISOR_DEPLOYMENT else {}
    return {**override, **surge}
