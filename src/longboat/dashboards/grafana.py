"""Dashboards as Grafana imports them: JSON of schema version 39, with the data source as a choice."""

from __future__ import annotations

from typing import Any, Final

from longboat.dashboards.boards import Board, Panel

__all__ = ("dashboard",)

_SCHEMA: Final = 39
_COLUMNS: Final = 24
_WIDTH, _HEIGHT = 12, 8
_SOURCE: Final[dict[str, Any]] = {"type": "prometheus", "uid": "${source}"}
_OTHERS: Final[dict[str, Any]] = {
    "type": "dashboards",
    "title": "Longboat",
    "tags": ["longboat"],
    "asDropdown": True,
    "icon": "dashboard",
    "tooltip": "Longboat's other dashboards",
    "keepTime": True,
    "includeVars": True,
    "targetBlank": False,
}
"""A menu of the other dashboards. They open with the same time range and choices."""


def dashboard(board: Board) -> dict[str, Any]:
    """Return the dashboard's document."""
    return {
        "uid": board.name,
        "title": board.title,
        "tags": ["longboat"],
        "schemaVersion": _SCHEMA,
        "editable": True,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "links": [_OTHERS],
        "templating": {"list": [_source(), *(_choice(label, metric) for label, metric in board.variables)]},
        "panels": [_panel(number, panel) for number, panel in enumerate(board.panels)],
    }


def _source() -> dict[str, Any]:
    return {"name": "source", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _choice(label: str, metric: str) -> dict[str, Any]:
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({metric}, {label})", "refId": label},
        "refresh": 2,
        "sort": 1,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    a_row = _COLUMNS // _WIDTH
    custom: dict[str, Any] = {"fillOpacity": 20 if panel.stacked else 5, "showPoints": "never", "spanNulls": False}
    custom |= {"stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"}}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": {
            "x": number % a_row * _WIDTH, "y": number // a_row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": expr, "legendFormat": legend}
            for at, (expr, legend) in enumerate(panel.queries)
        ],
    }  # fmt: skip
