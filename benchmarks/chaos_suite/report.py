"""Shows a chaos run: a table for the eye, and a document for machines."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

__all__ = ("machine", "show", "write")

COLUMNS = ("fault", "times", "streams", "resumed", "failed", "detected p50/p99 ms", "gap p50/p99 ms")


def machine() -> dict[str, Any]:
    """When and where."""
    return {
        "at": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def write(path: Path, document: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def show(document: Mapping[str, Any], examples: Sequence[Mapping[str, Any]], console: Console) -> None:
    """The table; the totals; the first answers that were no good."""
    table = Table(*COLUMNS, title=f"chaos: {document['engine']}, seed {document['seed']}, {document['place']}")
    for kind, found in document["by_kind"].items():
        detected, gap = _pair(found["detection_ms"]), _pair(found["gap_ms"])
        shown = [found[name] for name in ("faults", "affected", "resumed", "failed")]
        table.add_row(kind, *map(str, shown), detected, gap)
    table.add_section()
    totals = [document[name] for name in ("faults", "streams", "resumed", "failed")]
    table.add_row("all", *map(str, totals), _pair(document["detection_ms"]), _pair(document["gap_ms"]))
    console.print(table)
    for name in ("control", "faulted"):
        found = document.get(name, document)
        counts = ", ".join(f"{found[count]} {count}" for count in ("streams", "failed", "differing", "hung"))
        console.print(f"{name}: {counts}, {found['reconnected']} went to another gateway")
        if kinds := found.get("differing_kinds"):
            console.print("  differing: " + ", ".join(f"{count} {kind}" for kind, count in kinds.items()))
    if counted := document.get("counted"):
        console.print("counted by gateways: " + ", ".join(f"{n} {what}" for what, n in sorted(counted.items())))
    for answer in examples[:12]:
        what = answer["failure"] or "; ".join(answer["wrongs"])
        console.print(f"  {answer['phase']} {answer['number']} {answer['kind']}: {what}"[:800], highlight=False)


def _pair(found: Mapping[str, float | None]) -> str:
    if found["p50"] is None:
        return "–"
    return f"{found['p50']:.0f} / {found['p99']:.0f}"
