"""``longboat``: the commands and what is common to them, errors above all."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from longboat import __version__
from longboat.cli.gateway.commands import gateway_app
from longboat.cli.keys.commands import keys_app
from longboat.cli.node.commands import node_app
from longboat.cli.node.engines import engines_app
from longboat.cli.plan.commands import cost, fit, plan_app
from longboat.cli.shared.error_text import print_error
from longboat.core.errors import ClusterError, LongboatError

__all__ = ("app", "main")

app = typer.Typer(
    name="longboat",
    help="Serve large language models on several machines: one file, one address, real engines placed by Ray.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(engines_app, name="engines", help="Install and list engine environments on this node.")
app.add_typer(gateway_app, name="gateway", help="Run a gateway by itself, before engines that someone else started.")
app.add_typer(keys_app, name="keys", help="Make, list and revoke API keys.")
app.add_typer(
    plan_app,
    name="plan",
    help="Plan a model on machines; compare predictions with measured rows.",
)
app.command()(fit)
app.command()(cost)
app.add_typer(node_app, name="node", help="Start and stop this machine's part of the cluster.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print Longboat's version.")
    ] = False,
) -> None:
    """What every command has."""


@app.command()
def up(
    target: Annotated[str, typer.Argument(metavar="FILE|MODEL", help="A fleet file, or a model (builtin:tiny).")],
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when everything is ready.")] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds to wait for readiness.")] = 1800.0,
    replan: Annotated[bool, typer.Option("--replan", help="Decide `auto` anew, also for models that run.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start also what the plan says cannot fit.")] = False,
    as_json: Json = False,
) -> None:
    """Serve a fleet: check it, plan it, place it, start it, and print its address."""
    from longboat.cli.fleet.up import run_up

    run_up(target, detach=detach, timeout_s=timeout_s, replan=replan, force=force, as_json=as_json)


@app.command()
def down() -> None:
    """End the fleet: models, gateways, and the local cluster if `up` started it."""
    from longboat.cli.fleet.down import run_down

    run_down()


@app.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing it.")] = False, as_json: Json = False
) -> None:
    """Show what runs where."""
    from longboat.cli.fleet.status import run_status

    run_status(watch=watch, as_json=as_json)


@app.command()
def drain(
    kind: Annotated[str, typer.Argument(help="replica, node or gateway.")],
    name: Annotated[str, typer.Argument(help="MODEL/REPLICA as status shows it, or a node's name or address.")],
    undo: Annotated[bool, typer.Option("--undo", help="Use a gateway again.")] = False,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds to wait until nothing runs there.")] = 900.0,
) -> None:
    """Take a replica, a node or a gateway out of use; answers end first, or go on elsewhere."""
    from longboat.cli.fleet.drain import run_drain

    run_drain(kind, name, undo=undo, timeout_s=timeout_s)


@app.command()
def logs(
    model: str,
    rank: Annotated[int | None, typer.Option("--rank", help="One rank of each replica; all when left out.")] = None,
    replica: Annotated[
        str | None, typer.Option("--replica", help="One replica, by the beginning or the end of its name.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as the log grows.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", help="Last lines to begin with.")] = 50,
) -> None:
    """Show the engine logs of a model, from whichever node they are on."""
    from longboat.cli.fleet.logs import run_logs

    run_logs(model, rank=rank, replica=replica, follow=follow, num_lines=lines)


@app.command()
def usage(
    days: Annotated[int, typer.Option("--days", min=1, max=3660, help="Days of UTC, today included.")] = 7,
    as_json: Json = False,
) -> None:
    """Show requests and tokens by tenant, model and day."""
    from longboat.cli.fleet.usage import run_usage

    run_usage(num_days=days, as_json=as_json)


@app.command()
def chat(
    model: Annotated[str | None, typer.Argument(help="A model of the fleet; the first one when left out.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="Ask this once instead of talking.")] = None,
    url: Annotated[
        list[str] | None,
        typer.Option("--url", help="A gateway's address; several: the next one goes on where one goes away."),
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Longest answer.")] = 512,
) -> None:
    """Talk to a model in the terminal; answers stream in."""
    from longboat.cli.chat.command import run_chat

    run_chat(model, prompt=prompt, urls=url or (), max_tokens=max_tokens)


@app.command()
def demo(
    file: Annotated[Path | None, typer.Argument(help="The fleet file to show; a built-in one when left out.")] = None,
    once: Annotated[bool, typer.Option("--once", help="End after the answer instead of staying up.")] = False,
) -> None:
    """Install what is missing, serve the built-in model, and ask it a question."""
    from longboat.cli.fleet.demo import run_demo

    run_demo(file, once=once)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the fleet file, for editors."""
    from longboat.cli.fleet.schema import print_schema

    print_schema()


@app.command()
def version() -> None:
    """Print Longboat's version."""
    _print_version(True)


def main() -> None:
    """Entry point: every error becomes what was wrong, where, and what to do next."""
    try:
        app()
    except LongboatError as error:
        _leave(error)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if os.environ.get("LONGBOAT_DEBUG"):
            raise
        _leave(_missing_package(error) if isinstance(error, ImportError) else _unexpected(error))


def _leave(error: LongboatError) -> NoReturn:
    print_error(error)
    sys.exit(error.exit_code)


def _missing_package(error: ImportError) -> LongboatError:
    return ClusterError(f"Longboat is not installed whole: {error}", hint="pip install 'longboat[cluster]'")


def _unexpected(error: Exception) -> LongboatError:
    told = " ".join(f"{type(error).__name__}: {error}".split())
    return LongboatError(f"unexpected {told}", hint="run it again with LONGBOAT_DEBUG=1 for the traceback")
