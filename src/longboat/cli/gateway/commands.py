"""``longboat gateway``: a gateway by itself, before engines that someone else started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ("gateway_app",)

gateway_app = typer.Typer(no_args_is_help=True)


@gateway_app.callback()
def common() -> None:
    """A gateway by itself."""


@gateway_app.command()
def run(
    upstream: Annotated[
        list[str] | None,
        typer.Option("--upstream", "-u", metavar="MODEL=URL", help="An engine; several of one model are its replicas."),
    ] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on (8000); 0 takes any.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on (127.0.0.1).")] = None,
    processes: Annotated[int | None, typer.Option(help="Gateway processes that share the port (1).")] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML with upstreams: and the fleet file's gateway: section.")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Key hashes, as `longboat keys` writes them; asks for keys.")
    ] = None,
    auth: Annotated[str | None, typer.Option(metavar="none|keys", help="Who may use it; none: everyone.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="Environment variable with the key that --upstream engines want.")
    ] = None,
) -> None:
    """Run a gateway in the foreground, before engines that someone else started. No Ray, no cluster."""
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
