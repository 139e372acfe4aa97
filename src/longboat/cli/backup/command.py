"""``longboat backup FILE`` and ``longboat restore FILE``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longboat.core.errors import ClusterError, UserInputError

if TYPE_CHECKING:
    from longboat.cli.backup.archive import Restored

__all__ = ("backup", "restore")

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Archive to write, for example boat.tar.gz.")],
    as_json: Json = False,
) -> None:
    """Save this machine's data that cannot be created again.

    These are the running fleet's file with the adapters that it serves, numbers of replicas given by commands, the
    hashes of API keys, tenants' usage at this node, your catalog and
    measurements, and the cluster's token. The archive holds secrets. The fleet may run meanwhile.
    """
    from datetime import UTC, datetime

    from longboat import __version__
    from longboat.cli.backup.archive import FLEET_FILE, FORMAT, Manifest, check_folder_of, files_of, write_archive
    from longboat.cli.backup.running import running_of
    from longboat.folders import home_folder, owner_name, run_folder

    check_folder_of(file)
    values, why = _running_values()
    running = running_of(values)
    files = files_of(home_folder()) | _token() | ({FLEET_FILE: running.text.encode()} if running.text else {})
    if not files:
        what = f"there is nothing to back up: {home_folder()} has no keys, usage, catalog or measurements, and {why}"
        raise UserInputError(what, hint="run it on the head, as the user that runs Longboat there")
    made = datetime.now(UTC).isoformat(timespec="seconds")
    owner = owner_name(run_folder() / "gateway")
    manifest = Manifest(
        format=FORMAT, longboat=__version__, made=made, owner=owner, fleet=running.name, commands=running.commands
    )
    write_archive(file, manifest, files)
    if as_json:
        told = {"file": str(file), "fleet": running.name, "files": sorted(files), "commands": running.commands}
        told |= {"lacks": running.lacks}
        print(json.dumps(told, indent=2))
        return
    typer.echo("\n".join([*sorted(files), *running.commands]))
    lacks = "" if running.text else f"; the fleet's file is not among them: {why}"
    typer.echo(f"{file}: {len(files)} file{'s' if len(files) > 1 else ''}{lacks}", err=True)
    if running.lacks:
        typer.echo(f"warning: {running.lacks}", err=True)


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Archive that `backup` wrote.")],
    folder: Annotated[Path, typer.Option("--to", help="Folder for the fleet's file.")] = Path(),
    as_json: Json = False,
) -> None:
    """Put back what `backup` saved, on this machine or on another.

    The whole archive is checked first. An existing file that differs is kept, as NAME.before-DATE.
    """
    from datetime import UTC, datetime

    from longboat.cli.backup.archive import FLEET_FILE, put_back, put_file, read_archive
    from longboat.folders import home_folder, owner_name, run_folder

    _refuse_running_node()
    manifest, files = read_archive(file)
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    done = put_back(home_folder(), manifest, files, owner=owner_name(run_folder() / "gateway"), now=now)
    if text := files.get(FLEET_FILE):
        done.append(put_file(folder / f"{manifest.fleet}.yaml", text, now))
    if as_json:
        rows = [{"path": str(one.path), "fate": one.fate, "before": str(one.before or "")} for one in done]
        told = {"fleet": manifest.fleet, "made": manifest.made, "files": rows, "commands": list(manifest.commands)}
        print(json.dumps(told, indent=2))
        return
    typer.echo("\n".join(map(_line, done)))
    next_step = f"; longboat up {folder / manifest.fleet}.yaml serves the fleet again" if text else ""
    typer.echo(f"from {manifest.owner}, {manifest.made}{next_step}", err=True)
    if manifest.commands:
        typer.echo(
            "\n  ".join(
                ["then these commands give the models the numbers of replicas that they had:", *manifest.commands]
            ),
            err=True,
        )


def _line(one: Restored) -> str:
    return f"{one.fate:8}  {one.path}" + (f"  (before: {one.before.name})" if one.before else "")


def _running_values() -> tuple[dict[str, Any], str]:
    """Return the values of the fleet that runs; {} where there is none, and why."""
    from longboat.cli.shared.cluster_at_hand import connect_quickly
    from longboat.cluster.fleet.deployed import controller_values

    try:
        with connect_quickly() as session:
            return controller_values(session.apps.all()), "no fleet is up"
    except ClusterError as error:
        return {}, error.message


def _token() -> dict[str, bytes]:
    """Return the token of this node's cluster where another file than the home folder's holds it."""
    from longboat.cluster.host.record import load_record
    from longboat.folders import run_folder

    record = load_record(run_folder())
    if record is None or record.started_by_up or not record.token_file:
        return {}
    try:
        return {"cluster_token": Path(record.token_file).read_bytes()}
    except OSError as error:
        typer.echo(f"the cluster's token is not among the files: {record.token_file}: {error.strerror}", err=True)
        return {}


def _refuse_running_node() -> None:
    from longboat.cluster.host.standing import standing_here
    from longboat.folders import run_folder

    if (here := standing_here(run_folder())) is not None and here.runs:
        ends = "longboat down" if here.record.started_by_up else "longboat node stop --keep-state"
        raise ClusterError(f"{here.what}, which writes to these files", hint=f"{ends} ends it; then restore")
