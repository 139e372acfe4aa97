"""Prometheus and Grafana in containers: a compose file, and what Grafana reads when it starts."""

from __future__ import annotations

from typing import Any, Final

__all__ = ("BOARDS_FOLDER", "boards_source", "compose", "data_source")

BOARDS_FOLDER: Final = "/var/lib/grafana-longboat"
_PROMETHEUS: Final = "prom/prometheus:v3.5.0"
_GRAFANA: Final = "grafana/grafana:12.1.1"
_SETTINGS: Final = "/etc/prometheus-longboat"
_PROMETHEUS_PORT, _GRAFANA_PORT = 9090, 3000
_SAFE: Final[dict[str, Any]] = {
    "network_mode": "host",  # so that addresses of gateways mean the same as outside
    "restart": "unless-stopped",
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges:true"],
}


def compose(key_file: str = "") -> dict[str, Any]:
    """Return the document of a compose file. Both listen on this machine only.

    key_file: with the admin key, which Prometheus sees at the same path; empty where the gateways ask for none
    """
    prometheus = {
        "image": f"${{PROMETHEUS_IMAGE:-{_PROMETHEUS}}}",
        **_SAFE,
        "command": [
            f"--config.file={_SETTINGS}/prometheus.yaml",
            "--storage.tsdb.path=/prometheus",
            f"--web.listen-address=127.0.0.1:{_PROMETHEUS_PORT}",
        ],
        "volumes": [
            *(f"./{name}:{_SETTINGS}/{name}:ro" for name in ("prometheus.yaml", "longboat-alerts.yaml")),
            *([f"{key_file}:{key_file}:ro"] if key_file else []),
            "prometheus:/prometheus",
        ],
    }
    grafana = {
        "image": f"${{GRAFANA_IMAGE:-{_GRAFANA}}}",
        **_SAFE,
        "environment": {
            "GF_SERVER_HTTP_ADDR": "127.0.0.1",
            "GF_SERVER_HTTP_PORT": str(_GRAFANA_PORT),
            "GF_SECURITY_ADMIN_PASSWORD": "${GRAFANA_PASSWORD:?choose a password for the user admin}",
            "GF_ANALYTICS_REPORTING_ENABLED": "false",
            "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        },
        "volumes": [
            "./grafana-source.yaml:/etc/grafana/provisioning/datasources/longboat.yaml:ro",
            "./grafana-boards.yaml:/etc/grafana/provisioning/dashboards/longboat.yaml:ro",
            f"./grafana:{BOARDS_FOLDER}:ro",
            "grafana:/var/lib/grafana",
        ],
    }
    return {
        "name": "longboat-watch",
        "services": {"prometheus": prometheus, "grafana": grafana},
        "volumes": {"prometheus": {}, "grafana": {}},
    }


def data_source() -> dict[str, Any]:
    """Return Grafana's settings of a data source: the Prometheus beside it."""
    source = {"name": "Longboat", "type": "prometheus", "access": "proxy", "isDefault": True}
    return {"apiVersion": 1, "datasources": [{**source, "url": f"http://127.0.0.1:{_PROMETHEUS_PORT}"}]}


def boards_source() -> dict[str, Any]:
    """Return Grafana's settings of where its dashboards lie."""
    provider = {"name": "Longboat", "folder": "Longboat", "type": "file", "options": {"path": BOARDS_FOLDER}}
    return {"apiVersion": 1, "providers": [provider]}
