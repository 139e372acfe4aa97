"""``longboat adapters``: add, remove and list the adapters of the running fleet, without a restart."""

from __future__ import annotations

import json
import os
from typing import Annotated, Any

import typer

from longboat.cli.completion.names import complete_model, complete_tenant
from longboat.cli.shared.command_list import CommandList

__all__ = ("adapters_app",)

adapters_app = typer.Typer(cls=CommandList, no_args_is_help=True, rich_markup_mode=None)
Timeout = Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for replicas and gateways.")]


@adapters_app.command()
def add(
    model: Annotated[str, typer.Argument(help="The model that it adapts.", autocompletion=complete_model)],
    source: Annotated[str, typer.Argument(metavar="FOLDER", help="The adapter's folder, as the nodes see it.")],
    name: Annotated[str, typer.Option("--name", help="Name for clients.  [default: the folder's name]")] = "",
    tenant: Annotated[
        list[str] | None,
        typer.Option(
            "--tenant", "-t", help="Tenant that may use it; repeat it for more.", autocompletion=complete_tenant
        ),
    ] = None,
    timeout_s: Timeout = 120.0,
) -> None:
    """Serve an adapter, or new contents of one that is served.

    Its files are checked on every node first. Running responses end with the contents with which they began.
    """
    from longboat.cli.shared.cluster_at_hand import connect
    from longboat.cluster.ray.adapter_changes import adapter_entry, add_adapter

    entry = adapter_entry(os.path.abspath(source), name, tenant)
    with connect() as session:
        added = add_adapter(session, model, entry, timeout_s)
    print(f"{added.name}: revision {added.revision} is served by every ready replica of {model}")
    typer.echo("write it into the fleet file too, or the next longboat up takes it out", err=True)


@adapters_app.command()
def remove(
    name: Annotated[str, typer.Argument(help="The adapter, as `longboat adapters list` shows it.")],
    timeout_s: Timeout = 60.0,
) -> None:
    """Take an adapter out of use.

    Running responses end as they began.
    """
    from longboat.cli.shared.cluster_at_hand import connect
    from longboat.cluster.ray.adapter_changes import remove_adapter

    with connect() as session:
        remove_adapter(session, name, timeout_s)
    print(f"{name} is not served any more")
    typer.echo("take it out of the fleet file too, or the next longboat up serves it again", err=True)


@adapters_app.command(name="list")
def list_adapters(as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False) -> None:
    """List the adapters: which model they adapt, and how many replicas serve them and hold them in memory."""
    from longboat.cli.shared.cluster_at_hand import connect, report_of
    from longboat.cluster.fleet.adapters import running_fleet
    from longboat.cluster.ray.adapter_changes import adapter_rows

    with connect() as session:
        report = report_of(session)
        rows = adapter_rows(running_fleet({"text": report.document}), report)
    if as_json:
        print(json.dumps(rows, indent=2))
    elif rows:
        _print_table(rows)
    else:
        typer.echo("no adapters; longboat adapters add MODEL FOLDER adds one", err=True)


def _print_table(rows: list[dict[str, Any]]) -> None:
    from longboat.cli.shared.console import make_console, simple_table

    table = simple_table("ADAPTER", "MODEL", "REVISION", "SERVED BY", "IN MEMORY OF", "TENANTS", "SOURCE")
    for row in rows:
        served = f"{len(row['served_by'])} of {row['replicas']}"
        tenants = "all" if row["tenants"] is None else ", ".join(row["tenants"])
        held = str(len(row["held_by"]))
        table.add_row(row["name"], row["model"], row["revision"], served, held, tenants, row["source"])
    make_console().print(table)
    for row in rows:
        for replica, why in row["problems"].items():
            typer.echo(f"{row['name']} on {replica[-8:]}: {why}", err=True)
