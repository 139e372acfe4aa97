"""``longboat status``: shows replicas, gateways and their nodes, once or repeatedly, for people or machines."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from longboat.cli import STATUS_S
from longboat.cli.counts.show import count_lines, decision_table
from longboat.cli.look.answer_limit import Wait, answer_limit
from longboat.cli.look.daily_limits import limit_table, limits_today
from longboat.cli.look.plan_and_actual import forced_lines, keep_pairs, pair_table, pairs_of
from longboat.cli.look.session_on_node import session_on_node
from longboat.cli.shared.cluster_at_hand import connect_quickly, report_of
from longboat.cli.shared.gateway_notes import tenants_document
from longboat.cluster.fleet.deployed import without_file
from longboat.cluster.protocol.messages import FleetReport
from longboat.cluster.protocol.shown import ShownFleet, shown_fleet
from longboat.core.errors import ClusterError
from longboat.core.tasks import DOES, GENERATE

if TYPE_CHECKING:
    from rich.console import Console

    from longboat.cli.shared.quick_session import QuickSession
    from longboat.cluster.ray.session import Session
    from longboat.core.topology import Node

__all__ = ("run_status", "wanted_replicas")

WATCH_EVERY_S = 0.5
NODES_AGE_S = 10.0


def run_status(*, watch: bool, as_json: bool, why: bool = False, timeout_s: float = STATUS_S) -> None:
    """Print the fleet's state; watched as JSON, one document a line.

    timeout_s: on a node, the most to wait for the fleet's state, unless it is watched

    Raises ClusterError when there is no cluster or no fleet.
    """
    if not watch:
        with answer_limit(timeout_s) as wait, session_on_node(wait) as session:
            _show(session, as_json, wait, why=why)
        return
    with connect_quickly() as session:
        if as_json:
            for report in _reports(session):
                print(json.dumps(_document(_nodes(session, report), report)), flush=True)
        else:
            _watch(session)


def wanted_replicas(report: FleetReport) -> dict[str, int]:
    """Model → replicas that are wanted: as was decided last, or as the fleet file has it."""
    counts = report.counts
    models = _shown(report).models
    return {name: counts[name].wanted if name in counts else model.replicas for name, model in models.items()}


def _shown(report: FleetReport) -> ShownFleet:
    shown: ShownFleet | None = getattr(report, "shown", None)  # an older controller's report lacks it
    if shown is not None:
        return shown
    from longboat.spec.files.load import load_fleet

    return shown_fleet(load_fleet(report.document, "the running fleet"))


def _nodes(session: Session | QuickSession, report: FleetReport) -> Sequence[Node]:
    """Return the nodes as the controller listed them: Ray's head may be away now."""
    listed: Sequence[Node] = getattr(report, "nodes", ())  # an older controller's report lacks them
    return listed or session.nodes()


def _age_of_nodes(report: FleetReport) -> str:
    """Say since when Ray's head lists no nodes; empty where it does."""
    age_s = report.at_s - getattr(report, "nodes_at_s", 0.0)
    is_old = bool(getattr(report, "nodes", ())) and age_s > NODES_AGE_S
    return f", as Ray's head listed them {age_s:.0f} s ago" if is_old else ""


def _show(session: Session | QuickSession, as_json: bool, wait: Wait, *, why: bool) -> None:
    """Ask for the fleet's state, end the wait, ask the gateways, and print it all."""
    from rich.text import Text

    from longboat.cli.shared.console import make_console

    report = report_of(session)
    nodes = _nodes(session, report)
    wait.end()
    shown = _shown(report)
    kept = keep_pairs(report, {name: model.engine for name, model in shown.models.items()})
    if as_json:
        document = _document(nodes, report) | _limits_document(session, report)
        document |= {"scaling": session.scaling_history()} if why else {}
        print(json.dumps(document, indent=2))
        return
    limits = _external_limits(session, report)
    console = make_console()
    number = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
    console.print(Text.assemble("fleet ", (report.fleet, "bold"), f"  {number}{_age_of_nodes(report)}"))
    _print(console, report, limits, why=why)
    if kept is not None:
        words = f"kept in {kept}; longboat plan calibrate {kept} fits predictions to it"
        console.print(words, style="dim", highlight=False, soft_wrap=True)


def _print(
    console: Console, report: FleetReport, limits: tuple[list[dict[str, Any]], dict[str, str]], *, why: bool
) -> None:
    from longboat.cli.shared.tables import external_table, fleet_view, start_table, tenant_view

    shown = _shown(report)
    console.print(fleet_view(report, wanted_replicas(report)))
    if report.partial:
        console.print("the controller has just started: replicas may be missing here", style="dim", highlight=False)
    for line in count_lines(report, all_of_them=why):
        console.print(line, style="dim", highlight=False, soft_wrap=True)
    for line in _started_lines(report):
        console.print(line, style="dim", highlight=False, soft_wrap=True)
    if why:
        if report.decisions:
            console.print(decision_table(report))
        console.print(start_table(getattr(report, "starts", {})))
    if shown.external:
        console.print(external_table(shown.external))
        _print_limits(console, *limits)
    console.print(tenant_view(shown.gateway, report))
    if pairs := pairs_of(report):
        console.print(pair_table(pairs))
    for name, model in shown.models.items():
        if model.task != GENERATE:
            console.print(f"{name} {DOES[model.task]}", style="dim", highlight=False)
    for line in forced_lines(report):
        console.print(line, style="red", highlight=False, soft_wrap=True)


def _started_lines(report: FleetReport) -> Iterator[str]:
    """Say which models no fleet file has, and how they end."""
    if not (started := _started(report)):
        return
    from longboat.cluster.fleet.started import StartedModel

    for model, mark in sorted(started.items()):
        yield f"{model}: {StartedModel(**mark)}, without the file; longboat stop {model} ends it"


def _external_limits(
    session: Session | QuickSession, report: FleetReport
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return what is left today of external models' limits, and by node why its part is missing."""
    if not any(model.limits for model in _shown(report).external):
        return [], {}
    try:
        limits, silent = limits_today(session, report.gateways)
    except ClusterError as error:
        return [], {"": error.message}
    return [limit for limit in limits if "model" in limit], silent


def _limits_document(session: Session | QuickSession, report: FleetReport) -> dict[str, Any]:
    limits, silent = _external_limits(session, report)
    return {"limits": limits, "missing_nodes": silent}


def _print_limits(console: Console, limits: list[dict[str, Any]], silent: Mapping[str, str]) -> None:
    if limits:
        console.print(limit_table(limits), highlight=False)
    for node, why in silent.items():
        words = f"today's limits do not include node {node}: {why}" if node else f"limits of today: {why}"
        console.print(words, style="dim", markup=False, highlight=False, soft_wrap=True)


def _watch(session: Session | QuickSession) -> None:
    from rich.live import Live

    from longboat.cli.shared.tables import fleet_view

    with Live(refresh_per_second=4) as live:
        for report in _reports(session):
            live.update(fleet_view(report, wanted_replicas(report)))


def _reports(session: Session | QuickSession) -> Iterator[FleetReport]:
    """Reports without end; moments at which the controller is being replaced are left out."""
    yield report_of(session)
    while True:
        time.sleep(WATCH_EVERY_S)
        if report := session.try_report():
            yield report


def _document(nodes: Sequence[Node], report: FleetReport) -> dict[str, Any]:
    shown = _shown(report)
    return {
        "fleet": report.fleet,
        "at_s": report.at_s,
        "partial": report.partial,
        "nodes_at_s": getattr(report, "nodes_at_s", 0.0),
        "nodes": [dataclasses.asdict(node) for node in nodes],
        "wanted": wanted_replicas(report),
        "counts": {model: dataclasses.asdict(count) for model, count in report.counts.items()},
        "decisions": [dict(decision) for decision in report.decisions],
        "started": _started(report),
        "starts": _starts_document(report),
        "tasks": {name: model.task for name, model in shown.models.items()},
        "external": {model.name: list(model.urls) for model in shown.external},
        "replicas": [_plain(state) for state in report.replicas],
        "access": {**tenants_document(shown.gateway, len(report.gateways)), "num_keys": report.num_keys},
        "gateways": [dataclasses.asdict(gateway) for gateway in report.gateways],
        "failures": {model: [*a.log_tail, a.state.detail] for model, a in report.failures.items()},
        "problems": list(report.problems),
        "pairs": {model: pair.values() for model, pair in pairs_of(report).items()},
        "planned": {"models": {}, "forced": [], **without_file(report.planned)},
        "updating": dict(report.updating),
        "taken_back": {model: {"digest": digest, "why": why} for model, (digest, why) in report.taken_back.items()},
    }


def _started(report: FleetReport) -> dict[str, dict[str, Any]]:
    """Return model → the mark of the operator who started it without the file."""
    return {model: dict(mark) for model, mark in getattr(report, "started", {}).items()}  # an older report lacks it


def _starts_document(report: FleetReport) -> dict[str, dict[str, Any]]:
    starts = getattr(report, "starts", {})  # an older controller's report lacks it
    return {
        model: {node: {"total_s": times.total_s, "phase_s": dict(times.phase_s)} for node, times in nodes.items()}
        for model, nodes in starts.items()
    }


def _plain(state: Any) -> dict[str, Any]:
    document: dict[str, Any] = dataclasses.asdict(state)
    document["phase"] = state.phase.value
    document["phase_s"] = dict(state.phase_s)
    return document
