"""``longboat cluster status``: each host's node, release and unit."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import typer

from longboat.cli.hosts.run import read_hosts
from longboat.cli.shared.console import make_console, simple_table
from longboat.hosts.plan.facts import HostFacts
from longboat.hosts.remote.look import Look, look_at
from longboat.hosts.remote.ssh import connections
from longboat.spec.files.hosts_file import HostSection, HostsFile

__all__ = ("run_status",)

_PIPE_COLUMNS = 300
_CLUSTER_FAULT = 3


def run_status(path: Path, *, as_json: bool) -> None:
    """Print one row for each host; the exit status is 3 where a host cannot be reached or its node is not up."""
    file = read_hosts(path)
    look = asyncio.run(_look(file))
    problems = {problem.where: problem.what for problem in look.problems}
    rows = [_row(index, host, look.facts.get(host.host), problems) for index, host in enumerate(file.hosts)]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
    else:
        _print(rows)
    if any(row["node"] != "up" for row in rows):
        raise typer.Exit(_CLUSTER_FAULT)


async def _look(file: HostsFile) -> Look:
    async with connections(file, file.hosts) as ssh:
        return await look_at(file, file.hosts, ssh)


def _row(index: int, host: HostSection, facts: HostFacts | None, problems: dict[str, str]) -> dict[str, str]:
    row = {"host": host.host, "role": host.role}
    if facts is None:
        told = problems.get(f"hosts[{index}] ({host.host})", "unknown")
        return row | {"node": "unreachable", "address": "", "version": "", "unit": "", "engines": "", "detail": told}
    manifest = facts.manifest
    return row | {
        "node": _node(facts) if manifest is not None else "not installed",
        "address": facts.node.address,
        "version": manifest.version if manifest is not None else "",
        "unit": facts.active if facts.digests.get("unit") else "",
        "engines": ", ".join(sorted(facts.engines)),
        "detail": facts.node.detail if facts.is_running else "",
    }


def _node(facts: HostFacts) -> str:
    """Return how the node is: while its unit starts it, the record still says how the last one was."""
    if not facts.is_running:
        return "stopped"
    return facts.node.phase or "starting" if facts.active == "active" else "starting"


def _print(rows: list[dict[str, str]]) -> None:
    names = ("host", "role", "node", "address", "version", "unit", "engines", "detail")
    table = simple_table(*(name.upper() for name in names))
    for row in rows:
        table.add_row(*(row[name] for name in names))
    make_console(width=_PIPE_COLUMNS).print(table)
