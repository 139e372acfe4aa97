"""``longboat node``: start and stop this machine's part of the cluster."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from longboat.cluster.host.record import ClusterRecord

__all__ = ("node_app",)

node_app = typer.Typer(no_args_is_help=True)


@node_app.command()
def start(
    head: Annotated[bool, typer.Option("--head", help="Begin a cluster with this machine.")] = False,
    join: Annotated[str, typer.Option("--join", metavar="ADDRESS[:PORT]", help="Join the cluster of this head.")] = "",
    local: Annotated[bool, typer.Option("--local", help="A head that only this machine can reach.")] = False,
    address: Annotated[str, typer.Option(help="Our address, as the other machines reach it; found by itself.")] = "",
    port: Annotated[int | None, typer.Option(help="Port of the head (6379).")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Label for placement.")] = None,
    num_cpus: Annotated[float | None, typer.Option(help="CPUs to offer; all when left out.")] = None,
    num_gpus: Annotated[float | None, typer.Option(help="GPUs to offer; all when left out.")] = None,
    token_file: Annotated[str, typer.Option(help="File with the cluster's secret.")] = "",
    storage: Annotated[str, typer.Option(help="Folder of the head's durable state, on a disk of its own.")] = "",
    block: Annotated[bool, typer.Option("--block", help="Stay until Ctrl-C, which ends the node.")] = False,
) -> None:
    """Make this machine a node: the head of a new cluster, or a part of one."""
    from longboat.cluster.host.ray_command import parse_labels
    from longboat.cluster.host.ray_node import NodeRequest, start_node
    from longboat.cluster.ray.session import require_ray
    from longboat.core.errors import UserInputError

    if bool(join) == (head or local):
        raise UserInputError("say which: a new cluster, or one to join", hint="--head, --local, or --join ADDRESS")
    if join and port is not None:
        raise UserInputError("--port is the head's", hint=f"write --join {join.partition(':')[0]}:{port}")
    if local and address:
        raise UserInputError("--local has the address 127.0.0.1", hint="leave out --local or --address")
    request = NodeRequest(
        join=join,
        is_local=local,
        address=address,
        port=port,
        labels=parse_labels(label or []),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        token_file=token_file,
        storage=storage,
    )
    require_ray()
    record = start_node(request, on_progress=_progress())
    _show(record)
    if block:
        _stay(record)


@node_app.command()
def stop(
    keep_state: Annotated[
        bool, typer.Option("--keep-state", help="Keep what the head knows, for starting it again.")
    ] = False,
) -> None:
    """End this node: Ray, engines, gateway, all of it."""
    from longboat.cluster.host.ray_node import stop_node

    print("the node is stopped" if stop_node(keep_state=keep_state) else "no node was running here")


def _progress() -> Callable[[str], None]:
    """Prints what is waited for: in place on a terminal, else every 10 s."""
    is_terminal = sys.stderr.isatty()
    last_s = time.monotonic()

    def show(text: str) -> None:
        nonlocal last_s
        if is_terminal:
            print(f"\r{text} ", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - last_s > 10.0:
            last_s = time.monotonic()
            print(text, file=sys.stderr, flush=True)

    return show


def _show(record: ClusterRecord) -> None:
    from longboat.cluster.host.choices import DEFAULT_PORT

    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    if record.role == "worker":
        print(f"this machine is a node of {record.gcs_address}, as {record.address} ({record.interface})")
        return
    print(f"this machine is the head of a cluster at {record.gcs_address} ({record.interface})")
    print(f"  dashboard   http://{record.dashboard}")
    print(f"  token file  {record.token_file}")
    if record.address == "127.0.0.1":
        return
    host, _, port = record.gcs_address.rpartition(":")
    print("Other machines join with the token file copied to them, once, and then:")
    print(f"  scp {record.address}:{record.token_file} FILE")
    print(f"  longboat node start --join {host if port == str(DEFAULT_PORT) else record.gcs_address} --token-file FILE")


def _stay(record: ClusterRecord) -> None:
    """Until the node ends, or a signal ends it."""
    import signal
    from pathlib import Path

    from longboat.cluster.host.ray_node import stop_node
    from longboat.cluster.host.record import local_cluster

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, leave)
    run = Path(record.run)
    try:
        while local_cluster(run) is not None:
            time.sleep(0.5)
    except KeyboardInterrupt:
        stop_node(run, keep_state=True)
        print("the node is stopped")
