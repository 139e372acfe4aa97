"""``longboat``: the commands and what is common to them, errors above all."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from longboat import __version__
from longboat.cli import STATUS_S
from longboat.cli.adapters.commands import adapters_app
from longboat.cli.backup.command import backup, restore
from longboat.cli.completion.deferred import defer
from longboat.cli.completion.names import complete_model, complete_replica, complete_started
from longboat.cli.dashboards.command import dashboards
from longboat.cli.first_process import run_below_init
from longboat.cli.gateway.commands import gateway_app
from longboat.cli.hosts.commands import bundle, cluster_app
from longboat.cli.keys.commands import keys_app
from longboat.cli.node.commands import node_app
from longboat.cli.node.engines import engines_app
from longboat.cli.plan.commands import cost, fit, plan_app
from longboat.cli.shared.command_list import CommandPanels
from longboat.cli.shared.error_text import tell_error, unexpected
from longboat.cli.signs import write_every_sign
from longboat.cli.simulate.command import simulate
from longboat.cli.weights.commands import weights_app
from longboat.core.errors import ClusterError, LongboatError

__all__ = ("app", "main")

app = typer.Typer(
    name="longboat",
    cls=CommandPanels,
    help="Serve large language models on several machines: one file, one address, real engines placed by Ray.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(adapters_app, name="adapters", help="Add, remove and list LoRA adapters of the running fleet.")
app.add_typer(engines_app, name="engines", help="Install, list and remove the engines of this machine.")
app.add_typer(gateway_app, name="gateway", help="Run a standalone gateway for engines that already run.")
app.add_typer(keys_app, name="keys", help="Create, list and revoke API keys.")
app.add_typer(
    plan_app,
    name="plan",
    help="Plan a model on machines: split, memory, speed.",
)
app.command()(fit)
app.command()(cost)
app.command()(simulate)
app.command()(dashboards)
app.add_typer(weights_app, name="weights", help="Fetch, list, check and remove the weights of this machine.")
app.add_typer(cluster_app, name="cluster", help="Make a cluster of bare hosts over SSH, upgrade it, remove it.")
app.command()(bundle)
app.command()(backup)
app.command()(restore)
app.add_typer(node_app, name="node", help="Make this machine part of a cluster, or take it out.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]

GatewayUrl = Annotated[
    str | None, typer.Option("--url", help="Address of one gateway.  [default: all gateways of the fleet]")
]


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
    """Hold the options that stand before every command."""


Overlays = Annotated[
    list[str] | None,
    typer.Option("--file", "-f", help="A further file, merged onto the one before it; repeat for more."),
]


@app.command()
def up(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|MODEL", help="A fleet file (-: stdin), or a model: builtin:tiny, hf:ORG/NAME, a folder."
        ),
    ] = None,
    overlays: Overlays = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return as soon as everything is ready.")] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds to wait until everything is ready.")
    ] = 1800.0,
    replan: Annotated[
        bool, typer.Option("--replan", help="Recompute `auto` settings, including for running models.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Start even what the plan says cannot fit.")] = False,
    end_started: Annotated[bool, typer.Option("--end-started", help="End started models that the file lacks.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and plan only, as `check` does.")] = False,
    as_json: Json = False,
) -> None:
    """Serve a fleet file, or one model, and print its address.

    Everything is checked and planned first: nothing is started while there is a mistake.
    """
    from longboat.cli.file.target import first_and_rest

    first, rest = first_and_rest(target, overlays or ())
    if dry_run:
        from longboat.cli.check.command import run_dry

        run_dry(first, rest, as_json=as_json)
        return
    if not (replan or force or as_json):
        from longboat.cli.fleet.unchanged import said_if_unchanged

        if said_if_unchanged(first, rest):
            return
    from longboat.cli.fleet.up import run_up

    options = {"replan": replan, "force": force, "end_started": end_started, "as_json": as_json}
    run_up(first, rest, detach=detach, timeout_s=timeout_s, **options)


@app.command()
def down() -> None:
    """End the fleet, and the local cluster if `up` started it."""
    from longboat.cli.fleet.down import run_down

    run_down()


@app.command()
def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until interrupted.")] = False,
    why: Annotated[bool, typer.Option("--why", help="Show how the numbers of replicas were decided.")] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Seconds to wait for the fleet's state.")
    ] = STATUS_S,
    as_json: Json = False,
) -> None:
    """Show replicas and gateways: where they run, and their state."""
    from longboat.cli.look.status import run_status

    run_status(watch=watch, why=why, as_json=as_json, timeout_s=timeout_s)


@app.command()
def drain(
    kind: Annotated[str, typer.Argument(help="What to take out: replica, node or gateway.")],
    name: Annotated[str, typer.Argument(help="MODEL/REPLICA as `status` shows it, or a node's name or address.")],
    undo: Annotated[bool, typer.Option("--undo", help="Put a gateway back into use.")] = False,
    move: Annotated[bool, typer.Option("--move", help="Move running responses to other replicas at once.")] = False,
    timeout_s: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds to wait until nothing runs there.")
    ] = 900.0,
) -> None:
    """Take a replica, node or gateway out of use, losing no response.

    Running responses end first, or continue on another replica.
    """
    from longboat.cli.fleet.drain import run_drain

    run_drain(kind, name, undo=undo, timeout_s=timeout_s, move=move)


Timeout = Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait.")]


@app.command()
def start(
    source: Annotated[str, typer.Argument(metavar="MODEL", help="builtin:tiny, hf:ORG/NAME, a folder, or s3://…")],
    name: Annotated[str, typer.Option("--name", help="Name for clients.  [default: from the source]")] = "",
    engine: Annotated[str, typer.Option("--engine", help="vllm, sglang or llama.cpp.  [default: vllm]")] = "",
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=10_000, help="Number of replicas.")] = 1,
    context: Annotated[
        int | None, typer.Option("--context", min=1, help="Longest context in tokens.  [default: the model's]")
    ] = None,
    cpus: Annotated[float | None, typer.Option("--cpus", min=0.01, max=1024, help="CPUs of one rank.")] = None,
    price: Annotated[
        str,
        typer.Option("--price", metavar="IN/OUT", help="Price of a million tokens: 0.5/1.5 or 0.5/1.5/EUR."),
    ] = "",
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return before it is ready.")] = False,
    timeout_s: Timeout = 1800.0,
    as_json: Json = False,
) -> None:
    """Serve one more model, which is not in the fleet file.

    It is planned as by `up`, and nothing else changes. At the next `longboat up`, add it to the file, or end it.
    """
    from longboat.cli.model_orders.commands import run_start

    given = {"source": source, "name": name, "engine": engine, "replicas": replicas, "context": context, "cpus": cpus}
    run_start({**given, "price": price}, wait=not no_wait, timeout_s=timeout_s, as_json=as_json)


@app.command()
def stop(
    model: Annotated[str, typer.Argument(help="A model that was started.", autocompletion=complete_started)],
    as_json: Json = False,
) -> None:
    """End a model that `longboat start` or the console started.

    Models of the fleet file are ended by the file; `longboat pause` takes one out of use.
    """
    from longboat.cli.model_orders.commands import run_stop

    run_stop(model, as_json=as_json)


NoWait = Annotated[bool, typer.Option("--no-wait", help="Return before the model has its number of replicas.")]


@app.command()
def scale(
    model: Annotated[str, typer.Argument(help="A model of the fleet.", autocompletion=complete_model)],
    replicas: Annotated[str, typer.Argument(help="A number, or auto: the fleet file decides again.")],
    no_wait: NoWait = False,
    timeout_s: Timeout = 900.0,
) -> None:
    """Change a model's number of replicas, losing no response.

    The number stays until the next `longboat up`, whatever the load is.
    """
    from longboat.cli.counts.change import run_scale

    run_scale(model, replicas, wait=not no_wait, timeout_s=timeout_s)


@app.command()
def pause(
    model: Annotated[str, typer.Argument(help="A model of the fleet.", autocompletion=complete_model)],
    no_wait: NoWait = False,
    timeout_s: Timeout = 900.0,
) -> None:
    """Take all replicas of a model out of use, losing no response.

    Its requests get 503 until `longboat resume` or `longboat up`.
    """
    from longboat.cli.counts.change import run_pause

    run_pause(model, wait=not no_wait, timeout_s=timeout_s)


@app.command()
def resume(
    model: Annotated[str, typer.Argument(help="A model that is paused.", autocompletion=complete_model)],
    no_wait: NoWait = False,
    timeout_s: Timeout = 900.0,
) -> None:
    """Start the replicas of a paused model again."""
    from longboat.cli.counts.change import run_resume

    run_resume(model, wait=not no_wait, timeout_s=timeout_s)


@app.command()
def logs(
    model: Annotated[str, typer.Argument(help="A model that `status` shows.", autocompletion=complete_model)],
    rank: Annotated[int | None, typer.Option("--rank", help="Only this rank of each replica.")] = None,
    replica: Annotated[
        str | None,
        typer.Option(
            "--replica", help="Only this replica, by the beginning or end of its name.", autocompletion=complete_replica
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines as they are written, until interrupted.")
    ] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Number of last lines to begin with.")] = 50,
) -> None:
    """Show the engine logs of a model, from all nodes."""
    from longboat.cli.look.logs import run_logs

    run_logs(model, rank=rank, replica=replica, follow=follow, num_lines=lines)


@app.command()
def usage(
    days: Annotated[int, typer.Option("--days", min=1, max=3660, help="Number of days (UTC), today included.")] = 7,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for spreadsheets.")] = False,
    plot: Annotated[bool, typer.Option("--plot", help="Print a bar of tokens for each day.")] = False,
    svg: Annotated[bool, typer.Option("--svg", help="Print an SVG file: tokens by day and tenant.")] = False,
    url: GatewayUrl = None,
    as_json: Json = False,
) -> None:
    """Show requests, tokens and money by tenant, model and day."""
    from longboat.cli.look.usage import form_of, run_usage

    run_usage(num_days=days, form=form_of(csv=as_csv, plot=plot, svg=svg, json=as_json), url=url)


@app.command()
def console(
    url: GatewayUrl = None,
    in_browser: Annotated[bool, typer.Option("--open", help="Open it in this machine's browser.")] = False,
    as_json: Json = False,
) -> None:
    """Print the address of the console in a browser."""
    from longboat.cli.look.browser_console import run_console

    run_console(url=url, in_browser=in_browser, as_json=as_json)


@app.command()
def why(
    request_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of a recent request: x-request-id of its response.")
    ] = "",
    tenant: Annotated[str | None, typer.Option("--tenant", help="Without ID: only requests of this tenant.")] = None,
    last: Annotated[int, typer.Option("--last", min=1, max=1000, help="Without ID: newest requests to look at.")] = 200,
    url: GatewayUrl = None,
    as_json: Json = False,
) -> None:
    """Show which replica or tenant is slow, or where one request went."""
    from longboat.cli.look.why import run_why
    from longboat.cli.look.why_slow import run_why_slow

    if not request_id:
        run_why_slow(tenant=tenant, num_requests=last, url=url, as_json=as_json)
        return
    run_why(request_id, url=url, as_json=as_json)


@app.command()
def routes(
    model: Annotated[
        str | None, typer.Argument(help="A model of the fleet.  [default: all of them]", autocompletion=complete_model)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Refresh until interrupted.")] = False,
    url: GatewayUrl = None,
    as_json: Json = False,
) -> None:
    """Show how busy replicas are, and what their caches save."""
    from longboat.cli.look.routes import run_routes

    run_routes(model, watch=watch, url=url, as_json=as_json)


@app.command()
def chat(
    model: Annotated[
        str | None,
        typer.Argument(help="A model of the fleet.  [default: the first one]", autocompletion=complete_model),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="Ask this one question instead of starting a conversation.")
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option("--url", help="Address of a gateway; repeat it for others to fall back on."),
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens.")] = 512,
) -> None:
    """Talk to a model in the terminal.

    Questions can also come from a pipe, one per line: then only the answers are printed.
    """
    from longboat.cli.chat.command import run_chat

    run_chat(model, prompt=prompt, urls=url or (), max_tokens=max_tokens)


@app.command()
def demo(
    file: Annotated[Path | None, typer.Argument(help="A fleet file.  [default: one model in two replicas]")] = None,
    once: Annotated[
        bool, typer.Option("--once", help="End after the answer instead of staying up until Ctrl-C.")
    ] = False,
    engine: Annotated[str, typer.Option(help="The engine that serves it: vllm or llama.cpp.")] = "vllm",
) -> None:
    """Install an engine, serve a tiny built-in model, and ask it a question."""
    from longboat.cli.fleet.demo import run_demo

    run_demo(file, once=once, engine=engine)


@app.command()
def check(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="FILE|MODEL", help="Fleet files (-: stdin), or a model.")
    ] = None,
    overlays: Overlays = None,
    on: Annotated[
        str, typer.Option("--on", help='Machines: "2x(4xH100)", a cluster file, here, none or live.  [default: live]')
    ] = "",
    as_json: Json = False,
) -> None:
    """Check fleet files, and start nothing.

    Lists all mistakes: in the shape of the file, in references and secrets, and in the placement on this machine's
    cluster or on the machines of --on. Each file is checked by itself, with the files of -f merged onto it.
    """
    from longboat.cli.check.command import run_check

    run_check(targets or (), overlays or (), on=on, as_json=as_json)


@app.command()
def init(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write.")] = "fleet.yaml",
    model: Annotated[str, typer.Option("--model", help="The model: hf:ORG/NAME or a folder.  [default: chosen]")] = "",
    on: Annotated[str, typer.Option("--on", help='Machines: "1x(2xRTX4090)".  [default: this machine]')] = "",
    users: Annotated[int | None, typer.Option("--users", min=1, help="Requests at once.  [default: 8]")] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.  [default: 127.0.0.1]")] = "",
    port: Annotated[
        int | None, typer.Option("--port", min=1, max=65535, help="Port to listen on.  [default: 8000]")
    ] = None,
    command: Annotated[
        str, typer.Option("--from", metavar="COMMAND", help="An engine's command, a file that holds it, or -: stdin.")
    ] = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept all suggestions, without questions.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
) -> None:
    """Write a first fleet file: for this machine, or from a command.

    Detects cards, memory and network, and chooses the largest model of the catalog that serves the load well.
    """
    from longboat.cli.check.init import InitRequest, run_init

    num, at = users or 0, port or 0
    request = InitRequest(
        file=file, model=model, on=on, users=num, host=host, port=at, command=command, yes=yes, force=force
    )
    run_init(request)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the fleet file, for editors."""
    from longboat.cli.file.schema import print_schema

    print_schema()


@app.command()
def version() -> None:
    """Print Longboat's version."""
    _print_version(True)


defer(app)


def main() -> None:
    """Entry point: every error becomes what was wrong, where, and what to do next."""
    run_below_init()
    write_every_sign()
    try:
        _run()
    except ClusterError as error:
        from longboat.cli.shared.cluster_at_hand import explained

        _leave(explained(error))
    except LongboatError as error:
        _leave(error)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if os.environ.get("LONGBOAT_DEBUG"):
            raise
        _leave(_missing_package(error) if isinstance(error, ImportError) else unexpected(error))
    finally:
        _end_beside_ray()


def _run() -> None:
    """Run the command. Raises OSError where the end of its output cannot be written."""
    try:
        app()
    except SystemExit as end:
        if not end.code and sys.stdout is not None:
            with suppress(BrokenPipeError):
                sys.stdout.flush()
        raise


def _end_beside_ray() -> None:
    """End at once where threads still wait for Ray's head: the interpreter would wait for Ray's end, or crash in it."""
    head_question = sys.modules.get("longboat.cluster.node.head_question")
    if head_question is not None and any(thread.is_alive() for thread in head_question.LEFT_BEHIND):
        sys.stdout.flush()
        sys.stderr.flush()
        code = getattr(sys.exception(), "code", 0)
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _leave(error: LongboatError) -> NoReturn:
    tell_error(error)
    sys.exit(error.exit_code)


def _missing_package(error: ImportError) -> LongboatError:
    return ClusterError(
        f"a package that this command needs is not installed: {error}", hint="pip install 'longboat[cluster]'"
    )
