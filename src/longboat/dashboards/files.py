"""The files that ``longboat dashboards`` writes."""

from __future__ import annotations

import json

import yaml

from longboat.dashboards.boards import BOARDS
from longboat.dashboards.compose import boards_source, compose, data_source
from longboat.dashboards.grafana import dashboard
from longboat.dashboards.prometheus import rules, scrape_settings
from longboat.dashboards.runbooks import runbooks

__all__ = ("all_files",)


def all_files(gateways: tuple[str, ...], *, key_file: str = "", discover: bool = False) -> dict[str, str]:
    """Return path below the folder → text. Arguments as of ``scrape_settings``."""
    boards = {
        f"grafana/{board.name}.json": json.dumps(dashboard(board), indent=2, ensure_ascii=False) + "\n"
        for board in BOARDS
    }
    return {
        **boards,
        "longboat-alerts.yaml": _yaml(rules()),
        "prometheus.yaml": _yaml(scrape_settings(gateways, key_file=key_file, discover=discover)),
        "runbooks.md": runbooks(),
        "compose.yaml": _yaml(compose(key_file)),
        "grafana-source.yaml": _yaml(data_source()),
        "grafana-boards.yaml": _yaml(boards_source()),
    }


def _yaml(document: object) -> str:
    return str(yaml.safe_dump(document, sort_keys=False, width=120, allow_unicode=True))
