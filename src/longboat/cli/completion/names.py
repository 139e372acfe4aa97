"""Names that the shell completes: models, replicas and tenants of the fleet that runs, asked of this node's daemon."""

from __future__ import annotations

from typing import Any

__all__ = (
    "complete_model",
    "complete_replica",
    "complete_started",
    "complete_tenant",
    "models_in",
    "replicas_in",
    "tenants_in",
)


def complete_model(incomplete: str) -> list[str]:
    """Complete the name of a model."""
    return [name for name in models_in(_report()) if name.startswith(incomplete)]


def complete_replica(incomplete: str) -> list[str]:
    """Complete the name of a replica."""
    return [name for name in replicas_in(_report()) if name.startswith(incomplete)]


def complete_started(incomplete: str) -> list[str]:
    """Complete the name of a model that was started without the fleet file."""
    return [name for name in sorted(_report().get("started", {})) if name.startswith(incomplete)]


def complete_tenant(incomplete: str) -> list[str]:
    """Complete the name of a tenant."""
    return [name for name in tenants_in(_report()) if name.startswith(incomplete)]


def models_in(report: dict[str, Any]) -> list[str]:
    """Return the models of a report, also those without a replica."""
    return sorted({*report.get("counts", {}), *(state["model"] for state in report.get("replicas", ()))})


def replicas_in(report: dict[str, Any]) -> list[str]:
    """Return the replicas of a report."""
    return [state["replica"] for state in report.get("replicas", ())]


def tenants_in(report: dict[str, Any]) -> list[str]:
    """Return the tenants of a report's fleet file. The types of that file are not loaded: a shell waits."""
    from longboat.core.errors import LongboatError
    from longboat.core.policy import DEFAULT_TENANT
    from longboat.spec.text.yaml_text import parse_yaml

    try:
        file: Any = parse_yaml(str(report.get("document", "")))
        gateway = file.get("gateway") or {}
        names = sorted(tenant["name"] for tenant in gateway.get("tenants") or ())
    except (LongboatError, AttributeError, KeyError, TypeError):
        return []
    return names or ([DEFAULT_TENANT] if gateway.get("auth") == "keys" else [])


def _report() -> dict[str, Any]:
    """Return the controller's report as plain values; empty where nothing answers: a shell shows no errors."""
    from longboat.cluster.node.door_client import DoorClient
    from longboat.core.errors import LongboatError
    from longboat.folders import run_folder

    try:
        found: dict[str, Any] = DoorClient(run_folder()).ask("controller", "report", timeout_s=1.0)
    except LongboatError:
        return {}
    return found
