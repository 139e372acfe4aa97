"""``longboat up``: check, place, deploy, show how it comes up, and, in the foreground, take down what it started."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TextIO

from rich.console import Console

from longboat.cli.fleet.all_mistakes import read_whole
from longboat.cli.fleet.fleet_plan import planned_document, planning_basis, same_wishes, show_plan, up_options
from longboat.cli.fleet.readiness import Goal, wait_ready
from longboat.cli.fleet.taken_down import FleetWatch, TakenDownError
from longboat.cli.fleet.up_document import Action, up_values
from longboat.cli.keys.key_store import fleet_key_book
from longboat.cli.shared.console import make_console
from longboat.cli.shared.error_text import error_values
from longboat.cli.shared.gateway_choice import gateways_here
from longboat.cli.shared.gateway_notes import key_note
from longboat.cli.shared.interrupts import interrupt_deferred, no_interrupt, terminates_as_interrupt
from longboat.cli.shared.spinner import waiting
from longboat.cluster.fleet.deployed import controller_values
from longboat.cluster.fleet.rollout_values import with_rollouts
from longboat.cluster.fleet.serve_config import ShapedModel, digests_in, plain_policy, serve_document
from longboat.cluster.preflight.surroundings import CheckedPlan, UpOptions, checked_plan
from longboat.cluster.ray.session import Session, require_ray
from longboat.core.errors import ClusterError, LongboatError, UserInputError
from longboat.core.plan import GangShape
from longboat.core.policy import AdminCredential, Policy
from longboat.folders import run_folder
from longboat.spec.diff import FleetDiff, diff
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet
from longboat.spec.policy import policy_of
from longboat.spec.types.fleet import Fleet

__all__ = ("Applied", "end_fleet", "hold", "print_addresses", "run_up", "take_down", "up_in_foreground")


@dataclass(slots=True)
class Applied:
    """What one ``up`` did: everything that has to be undone when it is interrupted.

    digests: model → what its replicas must have been started with to count as ready
    shapes: model → the shape that its gangs were deployed with
    admins: who may use the gateways' admin API, as the file's secrets say now
    fleet, text: with numbers, once they are decided; asked, asked_text: as the file has it
    plan: how the numbers were found; planned: what the controller gets of it; replan, force: the options of ``up``
    changes: from what ran before, in lines
    """

    fleet: Fleet
    text: str
    asked: Fleet | None = None
    asked_text: str = ""
    plan: CheckedPlan | None = None
    planned: Mapping[str, Any] = field(default_factory=dict)
    replan: bool = False
    force: bool = False
    admins: tuple[AdminCredential, ...] = ()
    started_cluster: bool = False
    started_fleet: bool = False
    added: tuple[str, ...] = ()
    action: Action = "unchanged"
    changes: tuple[str, ...] = ()
    digests: dict[str, str] = field(default_factory=dict)
    shapes: Mapping[str, GangShape] = field(default_factory=dict)

    @property
    def holds_something(self) -> bool:
        """Whether there is anything that the end of this ``up`` takes down."""
        return self.started_fleet or bool(self.added)

    @property
    def fate(self) -> str:
        """What ends what this ``up`` did, for people."""
        if not self.holds_something:
            return "the fleet goes on running, as it did before; longboat down ends it"
        others = "longboat status, longboat chat and longboat logs work from other terminals"
        if self.started_fleet:
            return f"Ctrl-C takes it down; {others}"
        return f"Ctrl-C takes down {', '.join(self.added)}; the other models go on running; {others}"

    @property
    def goal(self) -> Goal:
        wanted = {model.name: model.num_replicas for model in self.fleet.models}
        return Goal(document=self.text, wanted=wanted, digests=self.digests, outlives_failure=not self.started_fleet)


def run_up(
    target: str, *, detach: bool, timeout_s: float, replan: bool = False, force: bool = False, as_json: bool = False
) -> None:
    """Run the command. Raises UserInputError (nothing was started), ClusterError or EngineError.

    replan: recompute what was decided before; force: start even what is sure not to fit
    as_json: one document on stdout, when all is ready or with the error that it ends with; the rest on stderr
    """
    told, out = False, sys.stderr if as_json else sys.stdout
    wishes = {"detach": detach, "replan": replan, "force": force}
    try:
        with up_in_foreground(target, timeout_s=timeout_s, console=make_console(stderr=as_json), **wishes) as found:
            if as_json:
                _print_json(_document(*found))
                told = True
            if not detach:
                hold(*found, out)
    except LongboatError as error:
        if as_json and not told:
            _print_json({"error": error_values(error)})
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
        _watch(session, applied).hold()


def _watch(session: Session, applied: Applied) -> FleetWatch:
    return FleetWatch(session, lambda: not applied.started_cluster or _is_at(session.gcs_address))


def _is_at(gcs_address: str) -> bool:
    """Return whether this machine is still a node of the cluster at this address."""
    from longboat.cluster.host.record import local_cluster

    record = local_cluster(run_folder())
    return record is not None and record.gcs_address == gcs_address


@contextmanager
def up_in_foreground(
    target: str,
    *,
    timeout_s: float,
    detach: bool = False,
    replan: bool = False,
    force: bool = False,
    console: Console | None = None,
) -> Iterator[tuple[Session, Applied]]:
    """Bring ``target`` up; leaving the block takes down what this call started, unless it is detached and came up.

    console: where it is shown; None: on stdout
    """
    console = console or make_console()
    with terminates_as_interrupt():
        fleet, admins = read_whole(target, console, replan=replan, force=force)
        text = dump_fleet(fleet)
        applied = Applied(
            fleet=fleet, text=text, asked=fleet, asked_text=text, admins=admins, replan=replan, force=force
        )
        try:
            yield from _up(applied, console, timeout_s, detach)
        except TakenDownError:
            console.print("another command took the fleet down (longboat down)")


def _up(applied: Applied, console: Console, timeout_s: float, detach: bool) -> Iterator[tuple[Session, Applied]]:
    session = _connect(applied, console)
    stays = False
    try:
        _come_up(session, applied, console, timeout_s)
        yield session, applied
        stays = detach
    except TakenDownError:
        stays = True  # there is nothing left to take down
        raise
    finally:
        with no_interrupt():
            _leave(session, applied, console, stays)


def _come_up(session: Session, applied: Applied, console: Console, timeout_s: float) -> None:
    _deploy(session, applied, console)
    try:
        wait_ready(session, applied.goal, console, timeout_s, sleep=_watch(session, applied).pause)
    except TakenDownError:
        applied.started_fleet, applied.added, applied.started_cluster = False, (), False
        hint = "longboat down, or longboat node stop, was run meanwhile"
        raise ClusterError("another command took the fleet down before it was ready", hint=hint) from None
    print_addresses(session, applied.fleet, console)


def _leave(session: Session, applied: Applied, console: Console, stays: bool) -> None:
    """Never hides the error that led here. The cluster is stopped when we are no part of it any more."""
    with session:
        try:
            if not stays:
                take_down(session, applied, console)
        except LongboatError as error:
            console.print(f"[yellow]not everything could be taken down: {error}[/yellow]")
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
            env = _start_cluster(console)
            applied.started_cluster = True
            on_error.callback(_stop_cluster, console)
        with waiting(console, "connecting to the cluster"):
            session = Session(env)
        on_error.pop_all()
        return session


def _deploy(session: Session, applied: Applied, console: Console) -> None:
    """Check the fleet against the cluster, and hand it to Serve where it is not what runs."""
    with waiting(console, "asking the nodes what is on them"):
        running = _running_fleet(session, applied.fleet)
        told = controller_values(session.applications())
        plan = _plan(session, applied, told, console)
    _take_plan(applied, plan, console)
    change = diff(running, applied.fleet) if running else None
    deployed = session.deployed_models()
    policy = _policy(session, applied.fleet, applied.admins)
    is_whole = all(model.name in deployed for model in applied.fleet.models if model.num_replicas)
    again = told.get("taken_back", {})
    is_whole = is_whole and told.get("policy") == plain_policy(policy) and not again
    is_whole = is_whole and (applied.asked is None or same_wishes(applied.asked, told))
    if change is not None and not _show_change(change, is_whole, console):
        applied.digests = {name: app["args"]["digest"] for name, app in deployed.items()}
        applied.text = str(told.get("text", applied.text))  # the same fleet, perhaps written in another order
        return
    applied.started_fleet = running is None
    applied.added = change.added if change else ()
    applied.action, applied.changes = ("changed", tuple(change.lines())) if change else ("started", ())
    with waiting(console, "starting the fleet's controller"):
        kept = {name: app for name, app in _kept(change, deployed).items() if name not in again}
        applied.digests = _put(session, applied, policy, applied.shapes, kept, told={**told, "taken_back": {}})
        session.expect(applied.text)


def _plan(session: Session, applied: Applied, told: Mapping[str, Any], console: Console) -> CheckedPlan:
    options = up_options(applied.fleet, told, replan=applied.replan, force=applied.force)
    basis = planning_basis(console)
    return checked_plan(applied.fleet, session.nodes(), session.inspect, basis=basis, options=options)


def _take_plan(applied: Applied, plan: CheckedPlan, console: Console) -> None:
    """Take over the plan: from here on the fleet has numbers."""
    show_plan(applied.asked or applied.fleet, plan, console)
    applied.shapes, applied.fleet, applied.text = plan.shapes, plan.fleet, dump_fleet(plan.fleet)
    applied.plan, applied.planned = plan, planned_document(applied.asked_text, plan)


def _policy(session: Session, fleet: Fleet, admins: tuple[AdminCredential, ...]) -> Policy:
    book = fleet_key_book(session, fleet.name, asks_for_keys=fleet.gateway.auth == "keys")
    return policy_of(fleet.gateway, book.keys, book.salt, admins=admins)


def _put(
    session: Session,
    wanted: Applied,
    policy: Policy,
    shapes: Mapping[str, GangShape],
    kept: Mapping[str, Mapping[str, Any]],
    told: Mapping[str, Any],
) -> dict[str, str]:
    shaped = [ShapedModel(spec=model, shape=shapes[model.name]) for model in wanted.fleet.models]
    others = session.foreign_applications()
    document = serve_document(
        wanted.fleet, shaped, wanted.text, policy=policy, planned=wanted.planned, deployed=kept, others=others
    )
    document = with_rollouts(document, told, session.deployed_models(), session.rest.url)
    with interrupt_deferred():  # Serve goes on with what it was sent, whether or not we wait: the undo comes after it
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
            f"fleet {running.name!r} runs on this cluster, and the file describes fleet {wanted.name!r}",
            hint=f"write name: {running.name} to change that one, or take it down first: longboat down",
        )
    return running


def _show_change(change: FleetDiff, is_whole: bool, console: Console) -> bool:
    """Print what will change; False when nothing does. is_whole: every model of the running fleet is deployed."""
    if change.empty and is_whole:
        console.print("nothing to change: this fleet is what runs")
        return False
    for line in change.lines():
        console.print(line, highlight=False)
    return True


def print_addresses(session: Session, fleet: Fleet, console: Console) -> None:
    """Print every node's gateway, and a line to try it with from here."""
    report = session.try_report()
    gateways = report.gateways if report else ()
    for gateway in gateways:
        console.print(f"[green]ready[/green]  {gateway.url}/v1  on {gateway.hostname}", highlight=False, soft_wrap=True)
    for gateway in gateways_here(gateways)[:1]:
        message = '{"role":"user","content":"What is Longboat?"}'
        body = f'{{"model":"{fleet.models[0].name}","stream":true,"messages":[{message}]}}'
        key = ' -H "Authorization: Bearer $LONGBOAT_API_KEY"' if fleet.gateway.auth == "keys" else ""
        line = f"curl -N {gateway.url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"
        console.print("\ntry it:", highlight=False)
        console.print(f"  {line}", highlight=False, soft_wrap=True, markup=False)
    if report and (note := key_note(fleet, report)):
        console.print(note, highlight=False, soft_wrap=True, markup=False)


def take_down(session: Session, applied: Applied, console: Console) -> None:
    """Undo what this ``up`` did: the fleet it started, or the models it added to a running one."""
    if applied.started_fleet:
        console.print("taking the fleet down …")
        end_fleet(session)
    elif applied.added:
        console.print(f"taking down {', '.join(applied.added)} …")
        _remove_models(session, applied)


def end_fleet(session: Session) -> None:
    """End models first, so that gateways answer to the last, then gateways, daemons and the controller.

    A controller that does not answer is ended all the same. Raises ClusterError when Serve does not answer.
    """
    others = session.foreign_applications()
    trouble = _end_by_controller(session, others)
    try:
        session.rest.put({"proxy_location": "Disabled", "applications": others})
        session.wait_gone()
    finally:
        if trouble:  # only now, since a controller that lives would start daemons again
            _end_daemons(session, trouble)


def _end_by_controller(session: Session, others: list[dict[str, Any]]) -> str:
    """End the fleet in order; return why that failed, empty where it did not."""
    try:
        session.check_controller()
        session.end_models(others)
        session.end_nodes()
    except ClusterError as error:
        return error.message
    return ""


def _end_daemons(session: Session, trouble: str) -> None:
    silent = ", ".join(node_id[:8] for node_id in session.end_daemons())
    left = f"; no answer from nodes {silent}: longboat node stop there ends what is left" if silent else ""
    print(f"warning: the fleet was ended without its controller ({trouble}){left}", file=sys.stderr, flush=True)


def _remove_models(session: Session, applied: Applied) -> None:
    kept = tuple(model for model in applied.fleet.models if model.name not in applied.added)
    if not kept:
        end_fleet(session)
        return
    fleet = applied.fleet.model_copy(update={"models": kept})
    left = Applied(fleet=fleet, text=dump_fleet(fleet), planned=applied.planned)
    policy, told = _policy(session, fleet, applied.admins), controller_values(session.applications())
    _put(session, left, policy, applied.shapes, session.deployed_models(), told)


def _start_cluster(console: Console) -> dict[str, str]:
    from longboat.cluster.host.ray_node import connect_env, start_local

    console.print("no cluster here: starting a local one …")
    require_ray()
    try:
        with waiting(console, "starting Ray"):
            return connect_env(start_local())
    except KeyboardInterrupt:
        _stop_cluster(console)
        raise


def _stop_cluster(console: Console) -> None:
    from longboat.cluster.host.ray_node import stop_node

    console.print("stopping the local cluster …")
    stop_node()
