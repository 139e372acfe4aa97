"""What changes hosts: ``longboat cluster up``, ``upgrade``, ``add`` and ``remove``."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Sequence
from pathlib import Path

import typer

from longboat.cli.hosts.board import Board
from longboat.core.errors import ClusterError, UserInputError, unwritable
from longboat.disk_sync import write_whole
from longboat.hosts.plan.steps import HostPlan, Kind
from longboat.hosts.remote.bring_up import Failure, Observer, Raised, bring_up
from longboat.hosts.remote.take_down import take_down
from longboat.spec.files.hosts_edit import with_host, without_host
from longboat.spec.files.hosts_file import HostsFile, load_hosts_file

__all__ = ("read_hosts", "run_add", "run_remove", "run_up", "run_upgrade")


def run_up(path: Path, *, dry_run: bool = False) -> None:
    """Make the hosts what the file says, and say what was done."""
    _up(path, read_hosts(path), dry_run=dry_run)


def run_upgrade(path: Path, *, dry_run: bool = False) -> None:
    """Bring the file's release to hosts that have another one. Raises ClusterError where a host has none."""

    def require_cluster(plans: Sequence[HostPlan]) -> None:
        if bare := [plan.host.host for plan in plans if plan.facts.manifest is None]:
            what = f"there is nothing to upgrade on {', '.join(bare)}"
            raise ClusterError(what, hint=f"longboat cluster up {path} installs it there")

    _up(path, read_hosts(path), dry_run=dry_run, check=require_cluster)


def run_add(path: Path, host: str) -> None:
    """Bring the host up, and write it into the file before anything is done on it."""
    text = _text(path)
    if any(known.host == host for known in load_hosts_file(text, str(path)).hosts):
        raise UserInputError(f"{host} is in {path} already", hint=f"longboat cluster up {path} brings it up")
    changed = with_host(text, host)
    file = load_hosts_file(changed, str(path))
    _up(path, file, check=lambda _plans: _write(path, changed))


def run_remove(path: Path, host: str | None) -> None:
    """Take Longboat off one host or all of them."""
    text = _text(path)
    file = load_hosts_file(text, str(path))
    chosen = [known for known in file.hosts if host in (None, known.host)]
    if not chosen:
        listed = ", ".join(known.host for known in file.hosts)
        raise UserInputError(f"{host} is not in {path}", hint=f"its hosts: {listed}")
    if host and chosen[0].role == "head" and len(file.hosts) > 1:
        raise UserInputError(
            f"{host} is the head; the others cannot be a cluster without it",
            hint=f"longboat cluster remove --file {path} removes all",
        )
    stays = host is not None and len(file.hosts) > 1
    changed = without_host(text, file.hosts.index(chosen[0])) if stays else text  # before anything is removed
    with Board(chosen) as board:
        failures = asyncio.run(take_down(file, chosen, board.tell))
    _refuse_failures(failures, "longboat cluster remove")
    if stays:
        _write(path, changed)
        typer.echo(f"{host} is removed, and no longer in {path}")
        return
    typer.echo(f"Longboat is removed from {len(chosen)} hosts; their data folders ({file.folders.data}) stay")


def read_hosts(path: Path) -> HostsFile:
    """Read the hosts file. Raises UserInputError."""
    return load_hosts_file(_text(path), str(path))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        told = getattr(error, "strerror", None) or "it is not text"
        raise UserInputError(
            f"{path} cannot be read: {told}", hint="docs/guides/bare-hosts.md shows a hosts file"
        ) from None


def _write(path: Path, text: str) -> None:
    """Write the file whole or not at all. Raises UserInputError."""
    target = path.resolve()
    try:
        write_whole(target, text, mode=stat.S_IMODE(target.stat().st_mode))
    except OSError as error:
        raise unwritable(path, error, hint="change its list of hosts") from None


def _up(path: Path, file: HostsFile, *, dry_run: bool = False, check: object = None) -> None:
    with Board(file.hosts) as board:

        def planned(plans: Sequence[HostPlan]) -> None:
            if callable(check):
                check(plans)
            board.planned(plans)

        raised = asyncio.run(bring_up(file, path.absolute().parent, Observer(board.tell, planned), dry_run=dry_run))
    if raised.is_unchanged:
        typer.echo("nothing to change: every host is as the file says")
        return
    if dry_run:
        typer.echo("nothing was changed: this was a dry run")
        return
    _refuse_failures(raised.failures, f"longboat cluster up {path}")
    _conclude(raised)


def _conclude(raised: Raised) -> None:
    changed = sum(bool(plan.steps) for plan in raised.plans)
    head = next(plan for plan in raised.plans if plan.host.role == "head")
    typer.echo(f"the cluster is up: {len(raised.plans)} hosts, {changed} changed")
    typer.echo(f"on {head.host.host}: {head.layout.launcher} status")
    if not head.has(Kind.FLEET) and not head.facts.digests.get("fleet"):
        typer.echo(f"serve a model: {head.layout.launcher} up builtin:tiny")


def _refuse_failures(failures: Sequence[Failure], command: str) -> None:
    """Raise ClusterError for hosts on which the work ended early."""
    if not failures:
        return
    told = "; ".join(f"{failure.host}: {failure.error.message}" for failure in failures)
    hint = failures[0].error.hint
    raise ClusterError(told, hint=f"{hint}; then {command} finishes" if hint else f"{command} finishes")
