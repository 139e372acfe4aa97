"""``longboat gateway``: a standalone gateway in front of engines that already run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longboat.cli.shared.command_list import CommandList

__all__ = ("gateway_app",)

gateway_app = typer.Typer(cls=CommandList, no_args_is_help=True, rich_markup_mode=None)


@gateway_app.callback()
def common() -> None:
    """Hold the commands of a gateway by itself."""


@gateway_app.command()
def run(
    upstream: Annotated[
        list[str] | None,
        typer.Option(
            "--upstream", "-u", metavar="MODEL=URL", help="An engine; repeat it, also for one model's replicas."
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.  [default: 8000]")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.  [default: 127.0.0.1]")] = None,
    processes: Annotated[int | None, typer.Option(help="Gateway processes that share the port.  [default: 1]")] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML file with upstreams: and the fleet file's gateway: section."),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Require API keys: the file that `longboat keys create --file` writes."),
    ] = None,
    auth: Annotated[str | None, typer.Option(metavar="none|keys", help="Whether requests need an API key.")] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Environment variable with the API key of the --upstream engines."),
    ] = None,
) -> None:
    """Run a standalone gateway in front of engines that already run.

    It runs in the foreground until Ctrl-C, without Ray and without a cluster.
    """
    from longboat.cli.gateway.run import run_alone
    from longboat.cli.gateway.standalone import AloneOptions

    options = AloneOptions(
        upstreams=tuple(upstream or ()),
        port=port,
        host=host,
        processes=processes,
        config=config,
        keys=keys,
        auth=auth,
        api_key_env=api_key_env,
    )
    run_alone(options)
