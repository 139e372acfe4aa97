"""``longboat up``: check, place, deploy, show how it comes up, and, in the foreground, take down what it started."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from longboat.cli.tables import make_console
from longboat.cli.target import load_target
from longboat.cluster.messages import FleetReport
from longboat.cluster.serve_config import ShapedModel, digests_in, serve_document
from longboat.cluster.session import Session
from longboat.cluster.surroundings import checked_plan
from longboat.core.errors import ClusterError, EngineError, LongboatError, UserInputError
from longboat.core.states import Phase
from longboat.planner.check import FleetPlan
from longboat.spec.diff import FleetDiff, diff
from longboat.spec.fleet import Fleet
from longboat.spec.load import load_fleet

__all__ = ("Applied", "apply_target", "print_addresses", "run_up", "take_down", "up_in_foreground")

POLL_S = 0.2
GIVE_UP_AFTER_FAILURES = 3


@dataclass(slots=True)
class Applied:
    """What one ``up`` did: everything that has to be undone when it is interrupted.

    digests: model → what its replicas must have been started with to count as ready
    """

    fleet: Fleet
    text: str
    started_cluster: bool = False
    started_fleet: bool = False
    added: tuple[str, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)
    failures_seen: dict[str, set[str]] = field(default_factory=dict)


def run_up(target: str, *, detach: bool, timeout_s: float) -> None:
    """The command. Raises UserInputError (nothing was started), ClusterError or EngineError."""
    with up_in_foreground(target, timeout_s=timeout_s, detach=detach) as (session, _):
        if not detach:
            _print_hint()
            _stay(session)


@contextmanager
def up_in_foreground(target: str, *, timeout_s: float, detach: bool = False) -> Iterator[tuple[Session, Applied]]:
    """Bring ``target`` up; leaving the block takes down what this call started, unless it is detached and came up."""
    console = make_console()
    applied, session = apply_target(target, console)
    with session:
        try:
            wait_ready(session, applied, console, timeout_s)
            print_addresses(session, applied.fleet, console)
            yield session, applied
        except BaseException:
            _undo(session, applied, console)
            raise
        if not detach:
            _undo(session, applied, console)


def _undo(session: Session, applied: Applied, console: Any) -> None:
    """Never hides the error that led here."""
    with _no_interrupt():
        try:
            take_down(session, applied, console)
        except LongboatError as error:
            console.print(f"[yellow]not everything could be taken down: {error}[/yellow]")
        if applied.started_cluster:
            _stop_cluster(console)


def apply_target(target: str, console: Any) -> tuple[Applied, Session]:
    """Validate, start a local cluster where there is none, and hand the fleet to Serve."""
    from longboat.cli.cluster_at_hand import cluster_env
    from longboat.cluster.surroundings import this_machine

    fleet, text = load_target(target)
    applied = Applied(fleet=fleet, text=text)
    env = cluster_env()
    if env is None:
        checked_plan(fleet, [this_machine()])
        env = _start_cluster(console)
        applied.started_cluster = True
    try:
        session = Session(env)
        _deploy(session, applied, console)
    except BaseException:
        if applied.started_cluster:
            _stop_cluster(console)
        raise
    return applied, session


def _deploy(session: Session, applied: Applied, console: Any) -> None:
    running = _running_fleet(session, applied.fleet)
    plan = checked_plan(applied.fleet, session.nodes(), session.inspect)
    _show_plan(applied.fleet, plan, console)
    change = diff(running, applied.fleet) if running else None
    applied.started_fleet = running is None
    applied.added = change.added if change else ()
    deployed = session.deployed_models()
    is_whole = all(model.name in deployed for model in applied.fleet.models if model.replicas)
    if change is not None and not _show_change(change, is_whole, console):
        applied.digests = {name: app["args"]["digest"] for name, app in deployed.items()}
        return
    applied.digests = _put(session, applied.fleet, plan, applied.text, _kept(change, deployed))
    session.expect(applied.text)


def _put(
    session: Session, fleet: Fleet, plan: FleetPlan, text: str, kept: Mapping[str, Mapping[str, Any]]
) -> dict[str, str]:
    shaped = [ShapedModel(spec=model, shape=plan.shapes[model.name]) for model in fleet.models]
    others = session.foreign_applications()
    document = serve_document(fleet, shaped, text, deployed=kept, others=others)
    session.rest.put(document)
    return digests_in(document)


def _kept(change: FleetDiff | None, deployed: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Applications of models that go on as they are: at most their number of replicas changes."""
    if change is None:
        return {}
    remade = {model.name for model in change.changed if not model.only_replicas} | {*change.added}
    return {name: app for name, app in deployed.items() if name not in remade}


def _running_fleet(session: Session, wanted: Fleet) -> Fleet | None:
    report = session.report()
    if report is None or not report.document:
        return None
    running = load_fleet(report.document, "the running fleet")
    if running.name != wanted.name:
        raise UserInputError(
            f"fleet {running.name!r} is up on this cluster, the file is of fleet {wanted.name!r}",
            hint=f"write name: {running.name} to change that one, or take it down first: longboat down",
        )
    return running


def _show_change(change: FleetDiff, is_whole: bool, console: Any) -> bool:
    """Print what will change; False when nothing does. is_whole: every model of the running fleet is deployed."""
    if change.empty and is_whole:
        console.print("nothing to change: this fleet is what runs")
        return False
    for line in change.lines():
        console.print(line, highlight=False)
    return True


def _show_plan(fleet: Fleet, plan: FleetPlan, console: Any) -> None:
    from rich.table import Table

    from longboat.planner.explain import explain

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("MODEL", "SOURCE", "REPLICAS", "ENGINE", "SPLIT", "NODES", "PER NODE", "WHY"):
        table.add_column(column)
    for row in explain(fleet, plan.shapes):
        table.add_row(row.model, row.source, row.replicas, row.engine, row.split, row.nodes, row.per_node, row.reason)
    console.print(table)


def wait_ready(session: Session, applied: Applied, console: Any, timeout_s: float) -> None:
    """Show the replicas' phases until all are ready.

    Raises EngineError when a model failed to start several times, ClusterError after ``timeout_s``.
    """
    from rich.live import Live

    from longboat.cli.tables import fleet_view

    wanted = {model.name: model.replicas for model in applied.fleet.models}
    deadline_s = time.monotonic() + timeout_s
    told: set[str] = set()
    with Live(console=console, refresh_per_second=5, transient=not console.is_terminal) as live:
        while True:
            report = session.try_report()
            if report is not None and report.document == applied.text:
                live.update(fleet_view(report, wanted))
                if not console.is_terminal:
                    _tell_phases(report, told, console)
                if _is_ready(report, wanted, applied.digests):
                    return
                _check_failures(session, report, applied)
            if time.monotonic() > deadline_s:
                raise ClusterError(f"not ready after {timeout_s:.0f} s", hint="longboat status; longboat logs MODEL")
            time.sleep(POLL_S)


def _is_ready(report: FleetReport, wanted: Mapping[str, int], digests: Mapping[str, str]) -> bool:
    ready = dict.fromkeys(wanted, 0)
    for state in report.replicas:
        if state.phase is Phase.READY and state.digest == digests.get(state.model):
            ready[state.model] += 1
    gateways_up = bool(report.gateways) and all(not gateway.problem for gateway in report.gateways)
    return gateways_up and all(ready[model] >= count for model, count in wanted.items())


def _tell_phases(report: FleetReport, told: set[str], console: Any) -> None:
    """Where the output is no terminal, each new phase is a line."""
    for state in report.replicas:
        line = f"{state.model} {state.replica[-8:]} {state.phase.value}"
        if line not in told:
            told.add(line)
            console.print(line, highlight=False)


def _check_failures(session: Session, report: FleetReport, applied: Applied) -> None:
    for model, failure in report.failures.items():
        seen = applied.failures_seen.setdefault(model, set())
        seen.add(failure.state.replica)
        if len(seen) >= GIVE_UP_AFTER_FAILURES or session.has_given_up(model):
            raise EngineError(
                f"model {model} does not start: {failure.state.detail}",
                log_tail=failure.log_tail,
                hint=f"longboat logs {model} shows the whole log; mend the cause and run longboat up again",
            )
    for name in applied.digests:
        if name not in report.failures and (reason := session.has_given_up(name)):
            raise EngineError(f"model {name} cannot be deployed: {reason}", hint="longboat status --json")


def print_addresses(session: Session, fleet: Fleet, console: Any) -> None:
    """Every node's gateway, and a line to try it with."""
    report = session.report()
    gateways = report.gateways if report else ()
    for gateway in gateways:
        console.print(f"[green]ready[/green]  {gateway.url}/v1  on {gateway.hostname}", highlight=False, soft_wrap=True)
    if gateways:
        message = '{"role":"user","content":"What is Longboat?"}'
        body = f'{{"model":"{fleet.models[0].name}","stream":true,"messages":[{message}]}}'
        line = f"curl -N {gateways[0].url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'"
        console.print("\ntry it:", highlight=False)
        console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)


def take_down(session: Session, applied: Applied, console: Any) -> None:
    """Undo what this ``up`` did: the fleet it started, or the models it added to a running one."""
    if applied.started_fleet:
        console.print("taking the fleet down …")
        end_fleet(session)
    elif applied.added:
        console.print(f"taking down {', '.join(applied.added)} …")
        _remove_models(session, applied)


def end_fleet(session: Session) -> None:
    """End models first, so that gateways answer to the last, then gateways, keepers and the controller."""
    others = session.foreign_applications()
    session.end_models(others)
    session.end_nodes()
    session.rest.put({"proxy_location": "Disabled", "applications": others})
    session.wait_gone()


def _remove_models(session: Session, applied: Applied) -> None:
    from longboat.spec.dump import dump_fleet

    kept = tuple(model for model in applied.fleet.models if model.name not in applied.added)
    if not kept:
        end_fleet(session)
        return
    fleet = applied.fleet.model_copy(update={"models": kept})
    plan = checked_plan(fleet, session.nodes(), session.inspect)
    _put(session, fleet, plan, dump_fleet(fleet), session.deployed_models())


def _print_hint() -> None:
    print(
        "\nCtrl-C takes it down; longboat status, longboat chat and longboat logs work from other terminals", flush=True
    )


def _stay(session: Session) -> None:
    """Until interrupted. The fleet does not need us; we only hold its end."""
    del session
    with _terminates_as_interrupt():
        while True:
            time.sleep(3600)


@contextmanager
def _terminates_as_interrupt() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """A second Ctrl-C does not leave half a fleet behind."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start_cluster(console: Any) -> dict[str, str]:
    from longboat.cluster.ray_node import connect_env, start_local

    console.print("no cluster here: starting a local one …")
    return connect_env(start_local())


def _stop_cluster(console: Any) -> None:
    from longboat.cluster.ray_node import stop_node

    console.print("stopping the local cluster …")
    stop_node()
