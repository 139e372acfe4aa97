"""``longboat engines``: install engine environments on this node, list them, and remove them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from longboat.cli.shared.command_list import CommandList

if TYPE_CHECKING:
    from longboat.engines.environments.environment import InstalledEnvironment

__all__ = ("engines_app", "run_install")

_PIPE_COLUMNS = 500

engines_app = typer.Typer(cls=CommandList, no_args_is_help=True, rich_markup_mode=None)


@engines_app.command("install")
def install_command(
    engine: Annotated[str, typer.Argument(metavar="ENGINE[@VERSION]", help="The engine, or vllm@0.32.0.")],
    platform: Annotated[str, typer.Option(help="cpu or cuda.  [default: what this machine has]")] = "",
    python: Annotated[str, typer.Option(help="Python of the environment: a version (3.12) or an interpreter.")] = "",
    name: Annotated[str, typer.Option(help="Name of the environment.  [default: ENGINE-VERSION-PLATFORM]")] = "",
    force: Annotated[bool, typer.Option("--force", help="Build it again even while processes use it.")] = False,
) -> None:
    """Install an engine into an environment of its own.

    A complete environment stays unchanged.
    """
    installed = run_install(engine, platform=platform, python=python, name=name, force=force)
    typer.echo(f"{installed.name} is ready: {installed.environment.python}")


def run_install(
    engine: str, *, platform: str = "", python: str = "", name: str = "", force: bool = False
) -> InstalledEnvironment:
    """Install with progress on stderr. Empty values mean the defaults of ``longboat engines install``."""
    from longboat.cli.node.engine_progress import Progress
    from longboat.engines.environments.engine_lock import ENGINE_PYTHON, TORCH_CPU_VARIABLE
    from longboat.engines.environments.installer import install, parse_engine, request_for
    from longboat.engines.environments.package_sources import package_sources
    from longboat.folders import home_folder

    kind, version = parse_engine(engine)
    request = request_for(kind, version, platform=platform, python=python or ENGINE_PYTHON, name=name)
    torch_cpu = os.environ.get(TORCH_CPU_VARIABLE, "")
    with Progress() as progress:
        return install(
            request,
            home=home_folder(),
            sources=package_sources,
            torch_cpu=torch_cpu,
            report=progress,
            force=force,
        )


@engines_app.command("python")
def python_command(
    engine: Annotated[
        str, typer.Argument(metavar="ENGINE[@VERSION]", help="The engine: vllm, or vllm@0.32.0.")
    ] = "vllm",
) -> None:
    """Print the interpreter of an installed environment, for scripts."""
    from longboat.engines.environments.environment import find_environment
    from longboat.folders import home_folder

    kind, _, version = engine.partition("@")
    typer.echo(find_environment(kind, version=version or None, path=None, home=home_folder()).python)


@engines_app.command("list")
def list_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """List the engine environments of this machine."""
    from longboat.engines.environments.environment import engines_folder, installed_environments
    from longboat.folders import home_folder

    found = installed_environments(home_folder())
    if as_json:
        _print_json(found)
    elif found:
        _print_table(found)
    else:
        typer.echo(f"no engine environment in {engines_folder(home_folder())}; run: longboat engines install vllm")


@engines_app.command("remove")
def remove_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The environment, as longboat engines list shows it.")],
    force: Annotated[bool, typer.Option("--force", help="Remove it even while processes use it.")] = False,
) -> None:
    """Remove an engine environment from this machine."""
    from longboat.engines.environments.removal import remove
    from longboat.folders import home_folder

    taken_bytes = remove(name, home_folder(), force=force)
    typer.echo(f"{name} is removed; {taken_bytes / 1e9:.1f} GB are free again")


def _print_json(found: list[InstalledEnvironment]) -> None:
    import json

    typer.echo(json.dumps([_row(item) for item in found], indent=2))


def _print_table(found: list[InstalledEnvironment]) -> None:
    from longboat.cli.shared.console import make_console, simple_table

    table = simple_table("NAME", "SIZE", "INSTALLED", "PYTHON")  # a name is engine-version-platform
    for item in found:
        row = _row(item)
        size = f"{int(row['size_bytes']) / 1e9:.1f} GB"
        table.add_row(str(row["name"]), size, str(row["installed_at"])[:10], str(row["python"]))
    # A pipe has no width; print one line for each environment there.
    make_console(width=_PIPE_COLUMNS).print(table)


def _row(item: InstalledEnvironment) -> dict[str, str | int]:
    from longboat.engines.environments.removal import size_bytes

    environment = item.environment
    return {
        "name": item.name,
        "engine": environment.kind,
        "distribution": environment.distribution,
        "version": environment.version,
        "platform": environment.platform,
        "size_bytes": size_bytes(item.folder),
        "installed_at": item.created_at,
        "python": environment.python,
        "fingerprint": environment.fingerprint,
    }
