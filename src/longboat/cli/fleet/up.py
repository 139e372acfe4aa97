"""``longboat up``: check, place, deploy, show how it comes up, and, in the foreground, take down what it started."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from longboat.cli.fleet.all_mistakes import read_whole
from longboat.cli.fleet.applied import Applied
from longboat.cli.fleet.deployment import deploy
from longboat.cli.fleet.fleet_plan import planning_basis
from longboat.cli.fleet.readiness import wait_ready
from longboat.cli.fleet.taken_down import FleetWatch, TakenDownError
from longboat.cli.fleet.teardown import take_down
from longboat.cli.fleet.up_document import up_values
from longboat.cli.shared.console import make_console
from longboat.cli.shared.gateway_choice import gateways_here
from longboat.cli.shared.gateway_notes import key_note
from longboat.cli.shared.interrupts import no_interrupt, terminates_as_interrupt
from longboat.cli.shared.spinner import waiting
from longboat.cluster.preflight.surroundings import UpOptions, checked_plan
from longboat.cluster.ray.session import Session, require_ray
from longboat.core.errors import ClusterError, LongboatError
from longboat.folders import run_folder
from longboat.spec.diff import diff
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet
from longboat.spec.types.fleet import Fleet

__all__ = ("hold", "run_up", "up_in_foreground")


def run_up(
    target: str,
    overlays: Sequence[str] = (),
    *,
    detach: bool,
    timeout_s: float,
    replan: bool = False,
    force: bool = False,
    end_started: bool = False,
    as_json: bool = False,
) -> None:
    """Run the command. Raises UserInputError (nothing was started), ClusterError or EngineError.

    overlays: files that are merged onto ``target``
    replan: recompute what was decided before; force: start even what is sure not to fit
    end_started: end models that were started without the file
    as_json: one document on stdout, when all is ready or with the error that it ends with; the rest on stderr
    """
    told, out = False, sys.stderr if as_json else sys.stdout
    wishes: dict[str, Any] = {"overlays": overlays, "detach": detach, "replan": replan, "force": force}
    wishes["end_started"] = end_started
    try:
        with up_in_foreground(target, timeout_s=timeout_s, console=make_console(stderr=as_json), **wishes) as found:
            if as_json:
                _print_json(_document(*found))
                told = True
            if not detach:
                hold(*found, out)
    except Exception as error:
        vars(error)["after_document"] = told  # of any error: this document is the only one
        raise


def _document(session: Session, applied: Applied) -> dict[str, Any]:
    assert applied.plan is not None
    return up_values(
        applied.asked or applied.fleet,
        applied.plan,
        session.try_report(),
        action=applied.action,
        changes=applied.changes,
        started_cluster=applied.started_cluster,
    )


def _print_json(document: Mapping[str, Any]) -> None:
    print(json.dumps(document, indent=2), flush=True)


def hold(session: Session, applied: Applied, out: TextIO | None = None) -> None:
    """Stay until interrupted, if this ``up`` started anything; the fleet itself does not need this process.

    out: where the fate of the fleet is printed; None: on stdout
    Raises TakenDownError when another command took the fleet down.
    """
    print(f"\n{applied.fate}", file=out, flush=True)
    if applied.holds_something:
        session.leave()
        _watch(session, applied).hold()


def _watch(session: Session, applied: Applied) -> FleetWatch:
    return FleetWatch(session.apps, lambda: not applied.started_cluster or _is_at(session.gcs_address))


def _is_at(gcs_address: str) -> bool:
    """Return whether this machine is still a node of the cluster at this address, or will be again by itself."""
    from longboat.cluster.host.record import load_record

    record = load_record(run_folder())
    return record is not None and record.gcs_address == gcs_address and not record.is_ended


@contextmanager
def up_in_foreground(
    target: str,
    *,
    timeout_s: float,
    overlays: Sequence[str] = (),
    detach: bool = False,
    replan: bool = False,
    force: bool = False,
    end_started: bool = False,
    console: Console | None = None,
) -> Iterator[tuple[Session, Applied]]:
    """Bring ``target`` up; leaving the block takes down what this call started, unless it is detached and came up.

    console: where it is shown; None: on stdout
    """
    console = console or make_console()
    with terminates_as_interrupt():
        fleet, admins = read_whole(target, console, overlays, replan=replan, force=force)
        text = dump_fleet(fleet)
        applied = Applied(
            fleet=fleet,
            text=text,
            asked=fleet,
            asked_text=text,
            admins=admins,
            replan=replan,
            force=force,
            end_started=end_started,
        )
        try:
            yield from _up(applied, console, timeout_s, detach)
        except TakenDownError:
            console.print("another command took the fleet down (longboat down)")


def _up(applied: Applied, console: Console, timeout_s: float, detach: bool) -> Iterator[tuple[Session, Applied]]:
    session = _connect(applied, console)
    stays = False
    try:
        _come_up(session, applied, console, timeout_s, detach)
        yield session, applied
        stays = detach
    except TakenDownError:
        stays = True  # there is nothing left to take down
        raise
    finally:
        with no_interrupt():
            _leave(session, applied, console, stays or (detach and bool(applied.replaced_by)))


def _come_up(session: Session, applied: Applied, console: Console, timeout_s: float, detach: bool) -> None:
    def note(text: str) -> None:
        applied.replaced_by = text

    deploy(session, applied, console)
    try:
        sleep = _watch(session, applied).pause
        wait_ready(session, applied.goal, console, timeout_s, sleep=sleep, on_replaced=note)
    except TakenDownError:
        applied.started_fleet, applied.added, applied.started_cluster = False, (), False
        hint = "longboat down, or longboat node stop, was run meanwhile"
        raise ClusterError("another command took the fleet down before it was ready", hint=hint) from None
    running = load_fleet(applied.replaced_by, "the running fleet") if applied.replaced_by else applied.fleet
    if detach and (lacks := _lacks(applied.fleet, running)):
        what = f"another command changed the fleet before this one was ready, and that one runs: {lacks}"
        raise ClusterError(what, hint="longboat status shows what runs; longboat up puts this file in force again")
    _print_addresses(session, running, console)


def _lacks(wanted: Fleet, running: Fleet) -> str:
    """Return what differs from the wanted fleet, further models left out; empty where nothing does."""
    if running.name != wanted.name:
        return f"fleet {running.name}"
    return "; ".join(replace(diff(wanted, running), added=()).lines())


def _leave(session: Session, applied: Applied, console: Console, stays: bool) -> None:
    """Take down what was applied, unless it stays. Never hide the error that led here.

    The cluster is stopped only after this process has disconnected from it.
    """
    with session:
        try:
            if not stays and applied.holds_something:
                session.rejoin()
                take_down(session, applied, console)
        except LongboatError as error:
            console.print(f"not everything could be taken down: {error}", style="yellow")
    if applied.started_cluster and not stays:
        _stop_cluster(console)


def _connect(applied: Applied, console: Console) -> Session:
    """Connect to the cluster at hand; where there is none, start a local one, if the fleet can run on it."""
    from longboat.cli.shared.cluster_at_hand import cluster_env
    from longboat.cluster.preflight.surroundings import this_machine

    with ExitStack() as on_error:
        env = cluster_env()
        if env is None:
            checked_plan(
                applied.fleet, [this_machine()], basis=planning_basis(console), options=UpOptions(force=applied.force)
            )
            env, applied.started_cluster = _start_cluster(console)
            if applied.started_cluster:
                on_error.callback(_stop_cluster, console)
        with waiting(console, "connecting to the cluster"):
            session = Session(env)
        on_error.pop_all()
        return session


def _print_addresses(session: Session, fleet: Fleet, console: Console) -> None:
    """Print every node's gateway, and a line to try it with from here."""
    report = session.try_report()
    gateways = report.gateways if report else ()
    for gateway in gateways:
        told = Text.assemble(("ready", "green"), f"  {gateway.url}/v1  on {gateway.hostname}")
        console.print(told, soft_wrap=True)
    for gateway in gateways_here(gateways)[:1]:
        message = '{"role":"user","content":"What is Longboat?"}'
        body = f'{{"model":"{fleet.names[0]}","stream":true,"messages":[{message}]}}'
        key = ' -H "Authorization: Bearer $LONGBOAT_API_KEY"' if fleet.gateway.auth == "keys" else ""
        line = f"curl -N {gateway.url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"
        console.print("\ntry it:", highlight=False)
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    if report and (note := key_note(fleet, report)):
        console.print(note, highlight=False, soft_wrap=True)


def _start_cluster(console: Console) -> tuple[dict[str, str], bool]:
    """Start the local cluster, or resume the one that this machine is known as.

    Return the variables that lead to it, and whether it is new: what this call did not make, it never ends.
    """
    from longboat.cluster.host.ray_node import connect_env, start_local
    from longboat.cluster.host.record import load_record
    from longboat.cluster.host.resume import resume_node

    is_known = load_record(run_folder()) is not None
    told = "the local cluster does not run: starting it again" if is_known else "no cluster here: starting a local one"
    console.print(f"{told} …")
    require_ray()
    try:
        with waiting(console, "starting Ray"):
            return connect_env(resume_node() if is_known else start_local()), not is_known
    except KeyboardInterrupt:
        if is_known:
            console.print("the local cluster goes on starting; longboat down ends it")
        else:
            _stop_cluster(console)
        raise


def _stop_cluster(console: Console) -> None:
    from longboat.cluster.host.ray_node import stop_node

    with no_interrupt():
        console.print("stopping the local cluster …")
        stop_node()
