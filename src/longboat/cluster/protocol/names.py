"""Names under which Longboat's parts are found in Ray."""

from __future__ import annotations

__all__ = (
    "CONTROLLER_APP",
    "CONTROLLER_DEPLOYMENT",
    "NAMESPACE",
    "SUPERVISOR_DEPLOYMENT",
    "daemon_name",
    "model_app_name",
)

NAMESPACE = "longboat"
CONTROLLER_APP = "longboat"
CONTROLLER_DEPLOYMENT = "FleetController"
SUPERVISOR_DEPLOYMENT = "EngineSupervisor"
MODEL_APP_PREFIX = "longboat-model-"


def model_app_name(model: str) -> str:
    """Return the name of a model's Serve application."""
    return f"{MODEL_APP_PREFIX}{model}"


def daemon_name(node_id: str) -> str:
    """Return the name of a node's daemon actor."""
    return f"longboat-node-{node_id}"
