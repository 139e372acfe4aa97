"""Reads Serve's deployed applications and changes parts of them, such as the controller's values and keys. Pure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from longboat.cluster.protocol.names import (
    CONTROLLER_APP,
    CONTROLLER_DEPLOYMENT,
    MODEL_APP_PREFIX,
    SUPERVISOR_DEPLOYMENT,
    model_app_name,
)
from longboat.core.errors import ClusterError, no_fleet

if TYPE_CHECKING:
    from longboat.core.policy import Policy
    from longboat.spec.files.keys_file import KeyBook

__all__ = (
    "ENDING",
    "SCALED_FROM_OUTSIDE",
    "Applications",
    "arguments_in_force",
    "bundle_labels",
    "bundles_in_force",
    "check_stays",
    "controller_values",
    "counts_in_force",
    "document_with",
    "is_ours",
    "key_book_in",
    "labels_in_force",
    "num_placed",
    "plain_policy",
    "running_values",
    "values_with_keys",
    "without_file",
)

ENDING = "ending"
"""Name among the controller's values: the fleet is being taken down."""
SCALED_FROM_OUTSIDE = {"external_scaler_enabled": True}
"""Part of a model's application: its number of replicas may be changed without a document (``ServeRest.scale``)."""
Applications = Mapping[str, Mapping[str, Any]]
"""Serve's applications by name, as its REST API lists them."""


def is_ours(app_name: str) -> bool:
    """Return whether a Serve application belongs to Longboat."""
    return app_name == CONTROLLER_APP or app_name.startswith(MODEL_APP_PREFIX)


def controller_values(apps: Applications) -> dict[str, Any]:
    """Return the controller's newest values (``serve_config.controller_document``); {} without a fleet."""
    app = apps.get(CONTROLLER_APP, {})
    if app.get("status") == "DELETING":
        return {}
    deployments = (app.get("deployed_app_config") or {}).get("deployments") or ()
    found = [entry.get("user_config") for entry in deployments if entry.get("name") == CONTROLLER_DEPLOYMENT]
    return dict(found[0] or {}) if found else {}


def running_values(apps: Applications) -> dict[str, Any]:
    """Return the controller's newest values. Raises ClusterError where no fleet is up."""
    if values := controller_values(apps):
        return values
    raise no_fleet()


def counts_in_force(apps: Applications) -> dict[str, int]:
    """Return model → the number of replicas that Serve is to keep; without models that it is removing or building."""
    found = {}
    for name, app in apps.items():
        deployment = (app.get("deployments") or {}).get(SUPERVISOR_DEPLOYMENT)
        if name.startswith(MODEL_APP_PREFIX) and app.get("status") != "DELETING" and deployment:
            found[name.removeprefix(MODEL_APP_PREFIX)] = int(deployment["target_num_replicas"])
    return found


def arguments_in_force(apps: Applications) -> dict[str, Mapping[str, Any]]:
    """Return model → the arguments of its application."""
    found = {name: (app.get("deployed_app_config") or {}).get("args", {}) for name, app in apps.items()}
    prefix = MODEL_APP_PREFIX
    return {name.removeprefix(prefix): args for name, args in found.items() if name.startswith(prefix) and args}


def bundles_in_force(apps: Applications) -> dict[str, list[dict[str, float]]]:
    """Return model → what one replica takes of each of its nodes."""
    return {name: args["bundles"] for name, args in arguments_in_force(apps).items() if args.get("bundles")}


def num_placed(apps: Applications, model: str) -> int:
    """Return how many replicas of a model have a place."""
    deployments = (apps.get(model_app_name(model), {}).get("deployments") or {}).values()
    replicas = [replica for deployment in deployments for replica in deployment.get("replicas") or ()]
    return sum(bool(replica.get("node_id")) and replica.get("state") != "STOPPING" for replica in replicas)


def bundle_labels(args: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the labels that each bundle's node must carry, its stage's included; empty where nothing is asked for."""
    labels = [{**args["labels"], **stage} for stage in args.get("stages") or [{}] * len(args["bundles"])]
    return labels if any(labels) else []


def labels_in_force(apps: Applications) -> dict[str, list[dict[str, str]]]:
    """Return model → the labels that each of a replica's nodes must carry, where any are asked for."""
    return {name: bundle_labels(args) for name, args in arguments_in_force(apps).items() if "labels" in args}


def check_stays(values: Mapping[str, Any]) -> None:
    """Check that a fleet is not being taken down, by its controller's values. Raises ClusterError otherwise."""
    if values.get(ENDING):
        hint = "once it is down, longboat up FILE starts one; longboat down ends one of which a part is left"
        raise ClusterError("this fleet is being taken down", hint=hint)


def document_with(
    apps: Applications,
    values: Mapping[str, Any],
    changed: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    *,
    ends: bool = False,
) -> dict[str, Any]:
    """Return the document that gives the controller ``values``, restarts nothing, and leaves all else as it is.

    changed: application → what it is to be instead; ends: it is the document by which the fleet is taken down
    Raises ClusterError where no fleet is up, or it is being taken down.
    """
    running = running_values(apps)
    if not ends:
        check_stays(running)
    controller = {
        **apps[CONTROLLER_APP]["deployed_app_config"],
        "deployments": [{"name": CONTROLLER_DEPLOYMENT, "user_config": dict(values)}],
    }
    others = [
        _scalable(name, changed.get(name, app["deployed_app_config"]))
        for name, app in apps.items()
        if name != CONTROLLER_APP and app.get("deployed_app_config") and app.get("status") != "DELETING"
    ]
    return {"proxy_location": "Disabled", "applications": [*others, controller]}


def _scalable(name: str, app: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an application whose number of replicas may be changed, where it is a model's: old ones lack that."""
    return {**app, **SCALED_FROM_OUTSIDE} if name.startswith(MODEL_APP_PREFIX) else app


def plain_policy(policy: Policy) -> dict[str, Any]:
    """Return the policy as values of JSON, as they come back from Serve."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(policy)))
    return values


def key_book_in(values: Mapping[str, Any]) -> KeyBook | None:
    """Return the controller's keys; None where it has no policy. Raise ClusterError where they cannot be read."""
    from longboat.spec.files.keys_file import key_book_from

    policy = values.get("policy")
    if not policy or not policy.get("salt"):
        return None
    try:
        return key_book_from(policy)
    except (KeyError, TypeError, ValueError) as error:
        hint = "longboat down, then longboat up FILE: it takes the keys of this machine's home folder"
        raise ClusterError(f"the running fleet's keys cannot be read: {error}", hint=hint) from None


def values_with_keys(values: Mapping[str, Any], book: KeyBook) -> dict[str, Any]:
    """Return the controller's values with other keys."""
    from longboat.spec.files.keys_file import key_book_values

    return {**values, "policy": {**values.get("policy", {}), **key_book_values(book)}}


def without_file(planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the plan says, for people, without the text of the fleet file: engines' variables may be secret."""
    return {name: value for name, value in planned.items() if name != "asked"}
