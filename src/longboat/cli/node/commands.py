"""``longboat node``: start and stop this machine's part of the cluster."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from longboat.cli.shared.command_list import CommandList

if TYPE_CHECKING:
    from collections.abc import Callable

    from longboat.cluster.host.record import ClusterRecord

__all__ = ("node_app", "show_record")

_LOOK_EVERY_S = 0.5
_ADOPTION_LOOKS = 60
"""Looks in a row that find no process that keeps the node: another one may have to take it over.

Seconds would say less, because this process may have been stopped itself.
"""

node_app = typer.Typer(cls=CommandList, no_args_is_help=True, rich_markup_mode=None)


@node_app.command()
def start(
    head: Annotated[bool, typer.Option("--head", help="Start a new cluster, with this machine as its head.")] = False,
    join: Annotated[
        str, typer.Option("--join", metavar="ADDRESS[:PORT]", help="Join the cluster whose head has this address.")
    ] = "",
    local: Annotated[
        bool, typer.Option("--local", help="Start a new cluster that only this machine can reach.")
    ] = False,
    address: Annotated[
        str, typer.Option(help="Address by which other machines reach this one.  [default: found]")
    ] = "",
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port of the head.  [default: 6379]")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Label that `placement` in a fleet file can ask for; repeatable."),
    ] = None,
    num_cpus: Annotated[int | None, typer.Option(min=0, help="CPUs to offer to the cluster.  [default: all]")] = None,
    num_gpus: Annotated[int | None, typer.Option(min=0, help="GPUs to offer to the cluster.  [default: all]")] = None,
    token_file: Annotated[str, typer.Option(help="File with the cluster's token, copied from the head.")] = "",
    storage: Annotated[str, typer.Option(help="Folder for the head's durable state, on a disk.")] = "",
    block: Annotated[bool, typer.Option("--block", help="Stay in the foreground; Ctrl-C ends the node.")] = False,
) -> None:
    """Start a cluster with this machine as its head, or join one.

    Without options, the machine takes its former role again: head or worker of the same cluster.
    """
    from longboat.cluster.host.ray_command import parse_labels
    from longboat.cluster.host.ray_node import NodeRequest, start_node
    from longboat.cluster.host.resume import keep_or_start, resume_node
    from longboat.cluster.ray.session import require_ray

    given = (join, head, local, address, port, label, num_cpus, num_gpus, token_file, storage)
    if all(value in (None, "", False) for value in given):
        require_ray()
        _up(resume_node(on_progress=_progress()), block=block)
        return
    _check_role(head=head, join=join, local=local, address=address, port=port)
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
    bring_up = keep_or_start if block and "NOTIFY_SOCKET" in os.environ else start_node
    _up(bring_up(request, on_progress=_progress()), block=block)


def _check_role(*, head: bool, join: str, local: bool, address: str, port: int | None) -> None:
    """Raise UserInputError where options of several roles are given, or of none."""
    from longboat.core.errors import UserInputError

    chosen = [name for name, value in (("--head", head), ("--local", local), ("--join", join)) if value]
    if len(chosen) != 1:
        told = f"{' and '.join(chosen)} together" if chosen else "neither a new cluster nor one to join is chosen"
        raise UserInputError(told, hint="give one of --head, --local and --join ADDRESS")
    if join and port is not None:
        raise UserInputError(
            "--port belongs to a head; the port of --join is part of its address",
            hint=f"write --join {join.partition(':')[0]}:{port}",
        )
    if local and address:
        raise UserInputError("--local always has the address 127.0.0.1", hint="leave out --local or --address")


@node_app.command()
def stop(
    keep_state: Annotated[
        bool, typer.Option("--keep-state", help="Keep the node's role and state; `node start` resumes them.")
    ] = False,
) -> None:
    """Stop Ray, engines and the gateway on this machine."""
    from longboat.cluster.host.ray_node import stop_node
    from longboat.cluster.host.record import load_record
    from longboat.folders import run_folder

    was_known = load_record(run_folder()) is not None
    if stop_node(keep_state=keep_state):
        print("the node is stopped")
    else:
        print(
            "the node did not run; its record is gone" if was_known and not keep_state else "no node was running here"
        )


def _up(record: ClusterRecord, *, block: bool) -> None:
    show_record(record)
    if block:
        tell_systemd("READY=1")
        _stay(record)


def tell_systemd(state: str) -> None:
    """Send a state (``READY=1``) to the service manager that started this command; sd_notify(3) has the protocol."""
    import os
    import socket

    if address := os.environ.get("NOTIFY_SOCKET", ""):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(state.encode(), address.replace("@", "\0", 1) if address.startswith("@") else address)


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


def show_record(record: ClusterRecord) -> None:
    """Print what a node is, and on a head how others join."""
    from longboat.cluster.host.choices import DEFAULT_PORT
    from longboat.cluster.host.ray_start import WHOLE_DASHBOARD

    if sys.stderr.isatty():
        print("\r", end="", file=sys.stderr)
    if record.role == "worker":
        print(f"this machine is a node of {record.gcs_address}, as {record.address} ({record.interface})")
        return
    print(f"this machine is the head of a cluster at {record.gcs_address} ({record.interface})")
    if os.environ.get(WHOLE_DASHBOARD) == "1":
        print(f"  dashboard   http://{record.dashboard}")
    print(f"  token file  {record.token_file}")
    if record.address == "127.0.0.1":
        return
    host, _, port = record.gcs_address.rpartition(":")
    print("Other machines join with the token file copied to them, once, and then:")
    print(f"  scp {record.address}:{record.token_file} FILE")
    print(f"  longboat node start --join {host if port == str(DEFAULT_PORT) else record.gcs_address} --token-file FILE")


def _stay(record: ClusterRecord) -> None:
    """Wait until the node ends, or a signal ends it."""
    import signal
    from pathlib import Path

    from longboat.cli.shared.interrupts import no_interrupt
    from longboat.cluster.host.ray_node import stop_node
    from longboat.cluster.host.record import load_record

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, leave)
    run = Path(record.run)
    try:
        num_missed = 0
        while num_missed < _ADOPTION_LOOKS:
            now = load_record(run)
            if now is None or now.is_ended or now.phase == "failed":
                return
            num_missed = 0 if now.is_kept else num_missed + 1
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        with no_interrupt():
            stop_node(run, keep_state=True)
        print("the node is stopped")
