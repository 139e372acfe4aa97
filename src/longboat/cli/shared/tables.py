"""Tables for the eye: plans, replicas with their phases, gateways."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from longboat.cli.shared.gateway_notes import auth_line, limits_line, tenant_rows
from longboat.cluster.protocol.messages import FleetReport, GatewayReport
from longboat.cluster.protocol.shown import ShownExternal, ShownGateway
from longboat.core.states import START_PHASES, Phase, ReplicaState, ResumeLevel, StartTimes

__all__ = (
    "external_table",
    "fleet_view",
    "gateway_table",
    "phase_times",
    "phase_words",
    "replica_table",
    "resume_lines",
    "start_table",
    "tenant_view",
)

Starts = Mapping[str, Mapping[str, StartTimes]]
STARTING = (Phase.FETCHING, *START_PHASES)
SHORTEST_S = 0.05
"""A phase that was shorter is not shown."""
COLOURS = {
    Phase.READY: "green",
    Phase.FAILED: "red",
    Phase.SUSPECT: "yellow",
    Phase.DRAINING: "yellow",
    Phase.GONE: "dim",
}


def fleet_view(report: FleetReport, wanted: Mapping[str, int]) -> RenderableType:
    """Show the whole fleet; wanted: model → replicas asked for."""
    starts: Starts = getattr(report, "starts", {})  # an older controller's report lacks it
    replicas = replica_table(report.replicas, wanted, report.at_s, starts)
    parts: list[RenderableType] = [replicas, gateway_table(report.gateways)]
    parts += [Text(line, style="dim") for line in resume_lines(report.replicas)]
    parts += [Text(f"~ {model} is being updated", style="cyan") for model in report.updating]
    back = (f"{model}: its update failed and was rolled back: {why}" for model, (_, why) in report.taken_back.items())
    parts += [Text(f"! {problem}", style="yellow") for problem in (*back, *report.problems)]
    return Group(*parts)


def external_table(models: Iterable[ShownExternal]) -> Table:
    """Show the models that other people serve; each gateway knows for itself whether they answer."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("EXTERNAL MODEL", "API", "THERE", "ADDRESSES", "LIMITS OF A DAY"):
        table.add_column(column)
    for model in models:
        limits = ", ".join(f"{value:g} {name.removesuffix('_per_day')}" for name, value in model.limits.items())
        table.add_row(model.name, model.api, model.model, ", ".join(model.urls), limits or "none")
    return table


def replica_table(
    replicas: Iterable[ReplicaState], wanted: Mapping[str, int], at_s: float, starts: Starts = MappingProxyType({})
) -> Table:
    """Make one row per rank, grouped by replica; models without any replica get a row of their own.

    at_s: when the replicas were looked at, on the clock of their ``announced_at_s``
    starts: model → node → how long the newest start took there
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (
        "MODEL",
        "REPLICA",
        "SPLIT",
        "PHASE",
        "RESUME",
        "RANK",
        "NODE",
        "PID",
        "START",
        "MEMORY",
        "SECONDS IN EACH PHASE",
    ):
        table.add_column(column, no_wrap=column != "SECONDS IN EACH PHASE")
    seen: set[str] = set()
    for state in replicas:
        seen.add(state.model)
        _replica_rows(table, state, at_s, starts.get(state.model, {}))
    for model, count in wanted.items():
        if model not in seen:
            note = "waiting for a place" if count else "0 replicas wanted"
            table.add_row(model, "-", "", Text(note, style="dim"))
    return table


def resume_lines(replicas: Iterable[ReplicaState]) -> list[str]:
    """Say why some models' answers cannot be resumed elsewhere at the highest level; one line for each reason."""
    lines = {
        f"{state.model}: resume {state.resume.value}: {state.resume_detail}": None
        for state in replicas
        if state.phase is Phase.READY and state.resume is not ResumeLevel.CARRIED and state.resume_detail
    }
    return list(lines)


def phase_times(state: ReplicaState, at_s: float, before: StartTimes | None = None) -> str:
    """``placing 1.2 · starting 0.8 · …`` up to ``at_s``, without phases that took no time, and the one of serving.

    before: the newest start at the same place; the phase of one that starts now is shown as ``loading 12.0 of 40.1``
    """
    running_s = max(at_s - state.announced_at_s, 0.0)
    spent = {name: s + (running_s if name == state.phase.value else 0.0) for name, s in state.phase_s.items()}
    words = phase_words(spent)
    lasted_s = before.phase_s.get(state.phase.value, 0.0) if before is not None and state.phase in STARTING else 0.0
    return f"{words} of {lasted_s:.1f}" if words and lasted_s >= SHORTEST_S else words


def phase_words(phase_s: Mapping[str, float]) -> str:
    """``placing 1.2 · starting 0.8 · …`` without phases that took no time, and the one of serving."""
    shown = [(name, s) for name, s in phase_s.items() if name not in ("ready", "suspect") and s >= SHORTEST_S]
    return " · ".join(f"{name} {s:.1f}" for name, s in shown)


def start_table(starts: Starts) -> Table:
    """Show how long the newest start of each model took on each node, and its parts."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("MODEL", "NODE", "READY IN", "SECONDS IN EACH PHASE"):
        table.add_column(column, no_wrap=column != "SECONDS IN EACH PHASE")
    for model, nodes in starts.items():
        for node, times in sorted(nodes.items()):
            table.add_row(model, node, f"{times.total_s:.1f} s", phase_words(times.phase_s))
    return table


def gateway_table(gateways: Iterable[GatewayReport]) -> Table:
    """Make one row per node."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("GATEWAY", "NODE", "PID", "IN FLIGHT", "REQUESTS"):
        table.add_column(column, no_wrap=True)
    for gateway in gateways:
        title = gateway.url or "-"
        where = f"{gateway.hostname} ({gateway.address})"
        if gateway.problem:
            table.add_row(title, where, Text(gateway.problem, style="red"))
            continue
        table.add_row(title, where, str(gateway.pid or ""), str(gateway.in_flight), str(gateway.requests_total))
    return table


def tenant_view(gateway: ShownGateway, report: FleetReport) -> RenderableType:
    """Show who may use the models, and how much."""
    num_gateways = len(report.gateways)
    lines = [auth_line(gateway, report.num_keys), limits_line(gateway, num_gateways)]
    parts: list[RenderableType] = [Text(line) for line in lines if line]
    if rows := list(tenant_rows(gateway, num_gateways)):
        table = Table(box=None, pad_edge=False, header_style="bold")
        limits = ("REQUESTS/MIN", "TOKENS/MIN", "TOKENS/DAY", "MONEY/DAY", "CONCURRENT")
        for column in ("TENANT", "WEIGHT", "PRIORITY", *limits):
            table.add_column(column, no_wrap=True)
        for row in rows:
            table.add_row(*row)
        parts.append(table)
    return Group(*parts)


def _replica_rows(table: Table, state: ReplicaState, at_s: float, starts: Mapping[str, StartTimes]) -> None:
    times = phase_times(state, at_s, starts.get(state.node))
    note = f"{times}; {state.detail}" if state.detail and state.phase in STARTING else state.detail or times
    name = state.replica[-8:]
    phase = Text(state.phase.value, style=COLOURS.get(state.phase, "cyan"))
    resume = _resume_text(state)
    if not state.ranks:
        table.add_row(state.model, name, state.shape, phase, resume, "", "", "", "", "", note)
    for rank in state.ranks:
        first = rank.node_rank == 0
        table.add_row(
            state.model if first else "",
            name if first else "",
            state.shape if first else "",
            phase if first else "",
            resume if first else "",
            str(rank.node_rank),
            f"{rank.hostname} ({rank.address})",
            str(rank.pid or "-"),
            rank.started_by,
            f"{rank.rss_bytes / 2**20:.0f} MiB" if rank.rss_bytes else "",
            note if first else "",
        )


def _resume_text(state: ReplicaState) -> Text:
    """Show how the replica's answers can be resumed elsewhere, once that was tried."""
    if state.phase not in (Phase.READY, Phase.SUSPECT, Phase.DRAINING):
        return Text("")
    return Text(state.resume.value, style="yellow" if state.resume is ResumeLevel.NONE else "")
