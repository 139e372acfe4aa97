"""Hands a fleet to Serve: plan it on the cluster, compare it with the fleet that runs, put the difference."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

from rich.console import Console

from longboat.cli.fleet.applied import Applied
from longboat.cli.fleet.first_places import first_places, steered
from longboat.cli.fleet.fleet_plan import planned_document, planning_basis, same_wishes, show_plan, up_options
from longboat.cli.shared.interrupts import interrupt_deferred
from longboat.cli.shared.spinner import waiting
from longboat.cluster.counts.by_hand import Hold, read_holds
from longboat.cluster.fleet.deployed import ENDING, check_stays, controller_values
from longboat.cluster.fleet.rollout_values import is_in_force, values_since, with_rollouts
from longboat.cluster.fleet.serve_config import (
    ShapedModel,
    digests_in,
    document_as_deployed,
    plain_policy,
    serve_document,
)
from longboat.cluster.fleet.started import STARTED, StartedModel, check_started, started_lines, with_started
from longboat.cluster.node.write_turn import until_written
from longboat.cluster.preflight.knowledge import Basis
from longboat.cluster.preflight.surroundings import CheckedPlan, checked_plan, inspect_here
from longboat.cluster.ray.key_changes import fleet_key_book, keys_locked, keys_path
from longboat.cluster.ray.session import Session
from longboat.core.errors import ClusterError, UserInputError
from longboat.core.plan import GangShape
from longboat.core.policy import AdminCredential, Policy
from longboat.spec.diff import FleetDiff, diff
from longboat.spec.files.dump import dump_fleet
from longboat.spec.files.load import load_fleet
from longboat.spec.policy import policy_of
from longboat.spec.types.fleet import Fleet
from longboat.spec.types.replicas import ReplicasSpec

__all__ = ("current_policy", "deploy", "idle_keys", "put_fleet")


def deploy(session: Session, applied: Applied, console: Console) -> None:
    """Check the fleet against the cluster, and hand it to Serve where it is not what runs."""
    with waiting(console, "asking the nodes for their models, engines and ports"):
        running = _running_fleet(session, applied.fleet)
        told = controller_values(session.apps.all())
        if not applied.end_started:
            check_started(told, applied.fleet)
        basis = planning_basis(console)
        plan = _plan(session, applied, told, basis)
    _take_plan(applied, plan, basis, console)
    change = diff(running, applied.fleet) if running else None
    applied.asleep = _may_sleep(change, applied.fleet)
    deployed = session.apps.deployed_models()
    policy = current_policy(session, applied.fleet, applied.admins)
    is_whole = all(model.name in deployed for model in applied.fleet.models if model.max_replicas)
    again = told.get("taken_back", {})
    is_whole = is_whole and told.get("policy") == plain_policy(policy) and not again
    is_whole = is_whole and (applied.asked is None or same_wishes(applied.asked, told))
    holds = read_holds(told)
    is_whole = is_whole and not holds and not (told.get(ENDING) or told.get(STARTED))
    if change is not None and not _show_change(change, is_whole, console):
        applied.digests = {name: app["args"]["digest"] for name, app in deployed.items()}
        applied.text = str(told.get("text", applied.text))  # the same fleet, perhaps written in another order
        return
    for line in (*_ended_holds(holds, applied.fleet), *started_lines(told, applied.fleet), *idle_keys(policy)):
        console.print(line, highlight=False)
    applied.started_fleet = running is None
    applied.added = change.added if change else ()
    applied.action, applied.changes = ("changed", tuple(change.lines())) if change else ("started", ())
    places = first_places(session, applied, deployed)
    for name, place in places.items():
        console.print(f"{name} goes where its weights are: {place.reason}", highlight=False)
    with waiting(console, "starting the fleet's controller"), steered(session, places, applied.shapes):
        kept = {name: app for name, app in _kept(change, deployed).items() if name not in again}
        applied.digests = put_fleet(session, applied, policy, applied.shapes, kept, ended=told)
        session.expect(applied.text)
    if applied.before - {str(told.get("text", "")), applied.text}:
        line = "another command changed the fleet while this one was planned: this file took the place of that change"
        console.print(line, highlight=False, soft_wrap=True)


def _ended_holds(holds: Mapping[str, Hold], fleet: Fleet) -> list[str]:
    """Say which counts by hand end: from now on, the file decides."""
    names = {model.name for model in fleet.models}
    what = {name: "paused" if hold.paused else f"{hold.asked} replicas" for name, hold in holds.items()}
    return [
        f"~ {name}: {what[name]} by {hold.by} ends; the file decides" for name, hold in holds.items() if name in names
    ]


def idle_keys(policy: Policy) -> list[str]:
    """Say which keys open nothing, because the file names no such tenant."""
    names = {tenant.name for tenant in policy.tenants}
    idle = sorted({key.tenant for key in policy.keys if key.tenant not in names}) if policy.auth == "keys" else []
    return [f"~ keys of {name} open nothing: the file has no such tenant; longboat keys list" for name in idle]


def _may_sleep(change: FleetDiff | None, fleet: Fleet) -> frozenset[str]:
    """Return the models whose replicas are not exchanged, and that may have none now."""
    if change is None:
        return frozenset()
    other = {model.name for model in change.changed if not model.only_replicas} | {*change.added}
    ruled = {m.name for m in fleet.models if isinstance(m.replicas, ReplicasSpec) and m.replicas.min == 0}
    return frozenset(ruled - other)


def _plan(session: Session, applied: Applied, told: Mapping[str, Any], basis: Basis) -> CheckedPlan:
    options = up_options(applied.fleet, told, replan=applied.replan, force=applied.force)
    inspect = inspect_here if applied.started_cluster else session.inspect  # the only node, with this environment
    return checked_plan(applied.fleet, session.nodes(), inspect, basis=basis, options=options)


def _take_plan(applied: Applied, plan: CheckedPlan, basis: Basis, console: Console) -> None:
    """Take over the plan: from here on the fleet has numbers."""
    show_plan(applied.asked or applied.fleet, plan, console)
    applied.shapes, applied.fleet, applied.text = plan.shapes, plan.fleet, dump_fleet(plan.fleet)
    applied.plan, applied.planned = plan, planned_document(applied.asked_text, plan, basis.calibration)


def current_policy(session: Session, fleet: Fleet, admins: tuple[AdminCredential, ...]) -> Policy:
    book = fleet_key_book(session, fleet.name, asks_for_keys=fleet.gateway.auth == "keys")
    return policy_of(
        fleet.gateway,
        book.keys,
        book.salt,
        admins=admins,
        external=fleet.external,
        served=fleet.served(),
        adapters=fleet.adapters(),
    )


def put_fleet(
    session: Session,
    wanted: Applied,
    policy: Policy,
    shapes: Mapping[str, GangShape],
    kept: Mapping[str, Mapping[str, Any]],
    ended: Mapping[str, Any] = MappingProxyType({}),
    *,
    base: str | None = None,
    started: Mapping[str, StartedModel] = MappingProxyType({}),
) -> dict[str, str]:
    """Put the fleet; keys, drains and counts by hand that changed since it was planned stay as they are then.

    What was written is read back, and written again where another command's document won.
    ended: values of the controller whose counts by hand, failed updates and marks of started models end with this
    document; base: the text of the fleet that this one was made from, whose models stay exactly as they are declared;
    None: whatever runs
    started: models that this document adds without a file

    Raises ClusterError where the running fleet is not ``base`` any more, another command began to take it down, or
    other commands always win.
    """
    asks_for_keys = wanted.fleet.gateway.auth == "keys"

    def attempt() -> dict[str, str] | None:
        # Serve carries out the document even if interrupted: undo after it
        with session.writing(), interrupt_deferred():
            values = controller_values(session.apps.all())
            if not ended.get(ENDING):  # an end that this command saw is one that it undoes
                check_stays(values)
            wanted.before |= {str(values.get("text", ""))}
            told = with_started(values_since(values, ended), started)
            deployed = session.apps.deployed_models()
            if base is None and not wanted.end_started:
                check_started(told, wanted.fleet)  # an operator may have started one while this fleet was planned
            if base is not None and told.get("text") not in (base, wanted.text):
                raise ClusterError("another command changed this fleet meanwhile", hint="try it again")
            document = _document(session, wanted, policy, shapes, kept)
            if base is not None:
                document = document_as_deployed(document, {name: deployed.get(name, app) for name, app in kept.items()})
            document = with_rollouts(document, told, deployed, session.rest.url)
            session.rest.put(document)
            return digests_in(document) if not told or is_in_force(document, session.apps.all()) else None

    with keys_locked(keys_path(wanted.fleet.name)) if asks_for_keys else nullcontext():
        return until_written(attempt)


def _document(
    session: Session,
    wanted: Applied,
    policy: Policy,
    shapes: Mapping[str, GangShape],
    kept: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    return serve_document(
        wanted.fleet,
        [ShapedModel(spec=model, shape=shapes[model.name]) for model in wanted.fleet.models if model.max_replicas],
        wanted.text,
        policy=policy,
        planned=wanted.planned,
        deployed=kept,
        in_force=session.apps.counts(),
        others=session.apps.foreign(),
    )


def _kept(change: FleetDiff | None, deployed: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the applications of models that stay as they are, except for their number of replicas."""
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
        console.print("nothing to change: this fleet already runs")
        return False
    for line in change.lines():
        console.print(line, highlight=False)
    return True
