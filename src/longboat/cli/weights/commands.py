"""``longboat weights``: fetch, list, check and remove the weights of this machine, and share them with others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from longboat.cli.shared.command_list import CommandList

__all__ = ("weights_app",)

weights_app = typer.Typer(cls=CommandList, no_args_is_help=True, rich_markup_mode=None)
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", help="File with the token of the swarm.  [default: LONGBOAT_WEIGHTS_TOKEN]"),
]


@weights_app.command()
def pull(
    target: Annotated[str, typer.Argument(metavar="FILE|SOURCE", help="A fleet file, or one source.")],
    endpoint: Annotated[str, typer.Option("--endpoint", help="Address of the S3 server.")] = "",
    disk: Annotated[str, typer.Option("--disk", help="Most that weights may take of the disk: 500GiB.")] = "",
    swarm: Annotated[
        list[str] | None, typer.Option("--swarm", help="HOST:PORT of `weights share` on another machine; repeatable.")
    ] = None,
    address: Annotated[str, typer.Option("--address", help="This machine's address for the swarm.")] = "",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port for pieces.  [0: a free one]")] = 0,
    token_file: TokenFile = None,
    stay_s: Annotated[float, typer.Option("--stay", help="Seconds to stay in the swarm while others fetch.")] = 0.0,
    as_json: Json = False,
) -> None:
    """Fetch weights to this machine.

    A source is s3://BUCKET/FOLDER, gs://…, az://…, https://…, file://… or hf:ORGANISATION/NAME@REVISION. An interrupted
    fetch continues where it stopped, and weights that are already here are not fetched again.
    """
    from longboat.cli.weights.pull import PullOptions, run_pull

    run_pull(
        target,
        PullOptions(
            endpoint=endpoint,
            disk=disk,
            trackers=tuple(swarm or ()),
            address=address,
            port=port,
            token_file=token_file,
            stay_s=stay_s,
            as_json=as_json,
        ),
    )


@weights_app.command()
def share(
    address: Annotated[str, typer.Option("--address", help="Address of the network card to share on.")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to share on.  [0: a free one]")] = 8470,
    token_file: TokenFile = None,
) -> None:
    """Share this machine's weights until Ctrl-C.

    Other machines join with `weights pull --swarm HOST:PORT` and the same token.
    """
    from longboat.cli.weights.share import run_share

    run_share(address, port, token_file)


@weights_app.command(name="list")
def list_weights(as_json: Json = False) -> None:
    """List the weights of this machine, with fetches under way."""
    from longboat.cli.weights.stored import run_list

    run_list(as_json=as_json)


@weights_app.command()
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Names as `list` shows them.  [default: all]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Read weights and compare every piece with its hash."""
    from longboat.cli.weights.stored import run_verify

    run_verify(tuple(names or ()), as_json=as_json)


@weights_app.command()
def evict(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names or sources as `list` shows them.")],
) -> None:
    """Remove weights from this machine.

    Weights that a replica uses are kept.
    """
    from longboat.cli.weights.stored import run_evict

    run_evict(tuple(names))
