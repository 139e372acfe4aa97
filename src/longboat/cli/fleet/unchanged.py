"""The quick end of ``longboat up``: the fleet that the file describes is what runs, as its last ``up`` asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longboat.cli.file.target import can_be_read_once, read_target
from longboat.cli.shared.cluster_at_hand import quick_session
from longboat.cli.shared.gateway_choice import gateways_here
from longboat.cli.shared.quick_session import QuickSession
from longboat.cluster.counts.by_hand import HOLDS
from longboat.cluster.fleet.deployed import ENDING, controller_values, key_book_in, plain_policy
from longboat.cluster.fleet.started import STARTED
from longboat.cluster.protocol.messages import FleetReport
from longboat.cluster.protocol.names import MODEL_APP_PREFIX
from longboat.core.errors import LongboatError
from longboat.core.states import Phase
from longboat.spec.files.dump import dump_fleet, fleet_digest
from longboat.spec.files.load import load_fleet
from longboat.spec.policy import policy_of
from longboat.spec.secrets import admin_credentials
from longboat.spec.types.fleet import Fleet

__all__ = ("said_if_unchanged",)


def said_if_unchanged(target: str, overlays: Sequence[str] = ()) -> bool:
    """Print that nothing is to change, and return True, where that is sure without a plan or a look at the nodes.

    Whatever is in doubt is left to the whole ``up``, mistakes in the file too.
    """
    if any(map(can_be_read_once, (target, *overlays))):
        return False
    try:
        fleet = read_target(target, overlays).fleet
        session = quick_session()
        if fleet is None or session is None or any(model.replicas == "auto" for model in fleet.models):
            return False  # numbers that the planner decides are not in the file
        report = _report_if_same(session, fleet)
    except (LongboatError, OSError):
        return False
    if report is None:
        return False
    print("nothing to change: this fleet already runs")
    for gateway in report.gateways:
        print(f"ready  {gateway.url}/v1  on {gateway.hostname}")
    for gateway in gateways_here(report.gateways)[:1]:
        print(f"longboat chat --url {gateway.url} talks to it")
    print("the fleet keeps running, as before; longboat down ends it")
    return True


def _report_if_same(session: QuickSession, fleet: Fleet) -> FleetReport | None:
    """Return the report of the fleet that runs where it is ``fleet``, whole and ready; else None."""
    apps = session.apps.all()
    told = controller_values(apps)
    before = told.get("planned", {}).get("asked") or told.get("text")
    if not before or any(told.get(name) for name in ("taken_back", "rollouts", HOLDS, STARTED, ENDING)):
        return None
    if not _means(before, fleet):
        return None
    if told.get("policy") != _policy(fleet, told) or not _all_run(fleet, apps):
        return None
    report = session.report()
    return report if report is not None and _is_ready(report, told, fleet) else None


def _means(text: str, fleet: Fleet) -> bool:
    """Return whether a text is of this fleet. The same file needs no second reading, which takes longest."""
    return text == dump_fleet(fleet) or fleet_digest(load_fleet(text, "the running fleet")) == fleet_digest(fleet)


def _policy(fleet: Fleet, told: dict[str, Any]) -> dict[str, Any] | None:
    """Return the policy that the file and its secrets make now, with the keys that are in force."""
    book = key_book_in(told)
    if book is None and fleet.gateway.auth == "keys":
        return None
    policy = policy_of(
        fleet.gateway,
        book.keys if book else (),
        book.salt if book else "",
        admins=admin_credentials(fleet.gateway.admin),
        external=fleet.external,
        served=fleet.served(),
        adapters=fleet.adapters(),
    )
    return plain_policy(policy)


def _all_run(fleet: Fleet, apps: dict[str, dict[str, Any]]) -> bool:
    running = {name.removeprefix(MODEL_APP_PREFIX) for name, app in apps.items() if app.get("status") == "RUNNING"}
    return all(model.name in running for model in fleet.models if model.max_replicas)


def _is_ready(report: FleetReport, told: dict[str, Any], fleet: Fleet) -> bool:
    """Return whether all that is wanted serves. A controller that has just started may know of less, never of more."""
    if report.document != told.get("text") or report.updating or not report.nodes or report.unheard:
        return False
    ready = [state.model for state in report.replicas if state.phase is Phase.READY]
    wanted = {model: count.wanted for model, count in report.counts.items()}
    enough = all(ready.count(model.name) >= wanted.get(model.name, model.max_replicas) for model in fleet.models)
    return enough and not any(gateway.problem for gateway in report.gateways)
