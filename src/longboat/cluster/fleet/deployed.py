"""Reads Serve's deployed applications and changes parts of them, such as the controller's values and keys. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from longboat.cluster.protocol.names import CONTROLLER_APP, CONTROLLER_DEPLOYMENT
from longboat.core.errors import ClusterError
from longboat.spec.files.keys_file import KeyBook, key_book_from, key_book_values

__all__ = ("Applications", "controller_values", "document_with", "key_book_in", "values_with_keys")

Applications = Mapping[str, Mapping[str, Any]]
"""Serve's applications by name, as its REST API lists them."""


def controller_values(apps: Applications) -> dict[str, Any]:
    """Return the controller's newest values (``serve_config.controller_document``); {} without a fleet."""
    app = apps.get(CONTROLLER_APP, {})
    if app.get("status") == "DELETING":
        return {}
    deployments = (app.get("deployed_app_config") or {}).get("deployments") or ()
    found = [entry.get("user_config") for entry in deployments if entry.get("name") == CONTROLLER_DEPLOYMENT]
    return dict(found[0] or {}) if found else {}


def document_with(
    apps: Applications,
    values: Mapping[str, Any],
    changed: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the document that gives the controller ``values``, restarts nothing, and leaves all else as it is.

    changed: application → what it is to be instead
    Raises ClusterError where no fleet is up.
    """
    if not controller_values(apps):
        raise ClusterError("no fleet is up on this cluster", hint="longboat up FILE starts one")
    controller = {
        **apps[CONTROLLER_APP]["deployed_app_config"],
        "deployments": [{"name": CONTROLLER_DEPLOYMENT, "user_config": dict(values)}],
    }
    others = [
        changed.get(name, app["deployed_app_config"])
        for name, app in apps.items()
        if name != CONTROLLER_APP and app.get("deployed_app_config") and app.get("status") != "DELETING"
    ]
    return {"proxy_location": "Disabled", "applications": [*others, controller]}


def key_book_in(values: Mapping[str, Any]) -> KeyBook | None:
    """Return the controller's keys; None where it has no policy."""
    policy = values.get("policy")
    return key_book_from(policy) if policy and policy.get("salt") else None


def values_with_keys(values: Mapping[str, Any], book: KeyBook) -> dict[str, Any]:
    """Return the controller's values with other keys."""
    return {**values, "policy": {**values.get("policy", {}), **key_book_values(book)}}
