"""``longboat cluster`` and ``longboat bundle``: bare hosts become a cluster, over SSH."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longboat.cli.shared.command_list import CommandList

__all__ = ("bundle", "cluster_app")

cluster_app = typer.Typer(cls=CommandList, no_args_is_help=True, rich_markup_mode=None)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The hosts file.")]
FileOption = Annotated[Path, typer.Option("--file", "-f", help="The hosts file.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Look and plan; change nothing.")]


@cluster_app.command()
def up(file: File = Path("hosts.yaml"), dry_run: DryRun = False) -> None:
    """Make a cluster of the hosts in a file, or apply changes of the file.

    Every host is checked first: nothing is changed while one has a problem.
    """
    from longboat.cli.hosts.run import run_up

    run_up(file, dry_run=dry_run)


@cluster_app.command()
def upgrade(file: File = Path("hosts.yaml"), dry_run: DryRun = False) -> None:
    """Install another release on a running cluster, node by node.

    Nodes restart one after the other, the head last; running answers move to other nodes first.
    """
    from longboat.cli.hosts.run import run_upgrade

    run_upgrade(file, dry_run=dry_run)


@cluster_app.command()
def status(
    file: File = Path("hosts.yaml"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Show each host's node, release and unit."""
    from longboat.cli.hosts.show import run_status

    run_status(file, as_json=as_json)


@cluster_app.command()
def add(
    host: Annotated[str, typer.Argument(metavar="HOST", help="A host for ssh: a name or an address.")],
    file: FileOption = Path("hosts.yaml"),
) -> None:
    """Write a worker into the hosts file, and make it a node."""
    from longboat.cli.hosts.run import run_add

    run_add(file, host)


@cluster_app.command()
def remove(
    host: Annotated[str | None, typer.Argument(metavar="HOST", help="One host.  [default: all of them]")] = None,
    file: FileOption = Path("hosts.yaml"),
) -> None:
    """Take Longboat off one host, or off all.

    The data folder stays: engines, weights, usage, the head's state. One host leaves the hosts file too.
    """
    from longboat.cli.hosts.run import run_remove

    run_remove(file, host)


def bundle(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder that does not exist yet, or is empty.")],
    wheel: Annotated[Path, typer.Option(help="Longboat's wheel.")],
    engine: Annotated[
        list[str] | None, typer.Option(metavar="ENGINE[@VERSION]", help="Engine to include; repeatable.")
    ] = None,
    platform: Annotated[str, typer.Option(help="cpu or cuda, for the engines.  [default: what this machine has]")] = "",
    with_python: Annotated[bool, typer.Option("--with-python", help="Include Python, as uv installs it.")] = False,
    python: Annotated[str, typer.Option(help="Python of the hosts.")] = "3.11",
) -> None:
    """Collect in one folder what hosts without a network need."""
    from longboat.cli.hosts.make_bundle import run_bundle

    run_bundle(folder, wheel, engines=engine or [], platform=platform, with_python=with_python, python=python)
