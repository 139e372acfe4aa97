"""The runbook of every alert, as one Markdown page."""

from __future__ import annotations

from longboat.dashboards.alert_list import ALERTS, Alert

__all__ = ("runbooks",)

_HEAD = """# Runbooks

One section for each alert of `longboat-alerts.yaml`. *page* means that users notice now, *ticket* that somebody should
look today.
"""


def runbooks() -> str:
    """Return the page."""
    return "\n".join([_HEAD, *map(_section, ALERTS)])


def _section(alert: Alert) -> str:
    steps = "\n".join(f"{number}. {step}" for number, step in enumerate(alert.steps, 1))
    when = f"after {alert.for_s // 60} minutes" if alert.for_s else "at once"
    return f"## {alert.name}\n\n{alert.meaning}\n\n*{alert.severity}*, {when}: `{alert.expr}`\n\n{steps}\n"
