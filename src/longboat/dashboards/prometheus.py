"""Rules and settings for Prometheus, as documents of its YAML files."""

from __future__ import annotations

from typing import Any

from longboat.dashboards.alert_list import ALERTS, Alert

__all__ = ("ENGINES_JOB", "JOB", "rules", "scrape_settings")

JOB = "longboat"
"""The job's name in Prometheus; the alert for a gateway that is down uses it."""

ENGINES_JOB = "longboat-engines"
TLS = "https://"


def rules() -> dict[str, Any]:
    """Return the document of a rules file with all alerts."""
    return {"groups": [{"name": "longboat", "rules": [_rule(alert) for alert in ALERTS]}]}


def scrape_settings(gateways: tuple[str, ...], *, key_file: str = "", discover: bool = False) -> dict[str, Any]:
    """Return a small configuration of Prometheus.

    gateways: HOST:PORT of each gateway, with https:// before it where the gateway has TLS
    key_file: a file with an admin key; empty where the gateways ask for none
    discover: Prometheus asks these gateways for the others, and for the engines
    """
    key = {"authorization": {"type": "Bearer", "credentials_file": key_file}} if key_file else {}
    if not discover:
        jobs: list[dict[str, Any]] = [{"job_name": JOB, "static_configs": _targets(gateways), **key}]
    else:
        jobs = [
            {"job_name": JOB, "http_sd_configs": _sources(gateways, "gateways", key), **key},
            {"job_name": ENGINES_JOB, "http_sd_configs": _sources(gateways, "engines", key)},
        ]
    return {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": ["longboat-alerts.yaml"],
        "scrape_configs": jobs,
    }


def _targets(gateways: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the groups of targets: those with TLS name it by a label, as a target is an address without a scheme."""
    plain = [gateway.removeprefix("http://") for gateway in gateways if not gateway.startswith(TLS)]
    secure = [gateway.removeprefix(TLS) for gateway in gateways if gateway.startswith(TLS)]
    groups: list[dict[str, Any]] = [{"targets": plain}] if plain else []
    return [*groups, {"targets": secure, "labels": {"__scheme__": "https"}}] if secure else groups


def _sources(gateways: tuple[str, ...], kind: str, key: dict[str, Any]) -> list[dict[str, Any]]:
    """Return where Prometheus learns its targets. Only these get the key: engines must not see it."""
    path = f"/admin/v1/prometheus-targets?of={kind}"
    return [{"url": f"{_url(gateway)}{path}", "refresh_interval": "30s", **key} for gateway in gateways]


def _url(gateway: str) -> str:
    return gateway.rstrip("/") if "://" in gateway else f"http://{gateway}"


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": f"{alert.for_s}s",
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "runbook": f"runbooks.md#{alert.name.lower()}"},
    }
