"""Tables for the eye: plans, replicas with their phases, gateways."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from longboat.cli.shared.console import simple_table
from longboat.cli.shared.gateway_notes import auth_line, limits_line, tenant_rows
from longboat.cluster.protocol.messages import FleetReport, GatewayReport
from longboat.cluster.protocol.shown import ShownExternal, ShownGateway
from longboat.core.states import START_PHASES, Phase, ReplicaState, ResumeLevel, StartTimes

__all__ = (
    "external_table",
    "fleet_view",
    "gateway_table",
    "phase_lines",
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
    parts: list[RenderableType] = [replica_table(report.replicas)]
    found = {state.model for state in report.replicas}
    for model in (model for model in wanted if model not in found):
        note = "waiting for a place" if wanted[model] else "0 replicas wanted"
        parts.append(Text(f"{model}: {note}", style="dim"))
    parts += [*phase_lines(report.replicas, report.at_s, starts), gateway_table(report.gateways)]
    parts += [Text(line, style="dim") for line in resume_lines(report.replicas)]
    parts += [Text(f"~ {model} is being updated", style="cyan") for model in report.updating]
    back = (f"{model}: its update failed and was rolled back: {why}" for model, (_, why) in report.taken_back.items())
    parts += [Text(f"! {problem}", style="yellow") for problem in (*back, *report.problems)]
    return Group(*parts)


def external_table(models: Iterable[ShownExternal]) -> Table:
    """Show the models that other people serve; each gateway knows for itself whether they answer."""
    table = simple_table("EXTERNAL MODEL", "API", "THERE", "ADDRESSES", "LIMITS OF A DAY")
    for model in models:
        limits = ", ".join(f"{value:g} {name.removesuffix('_per_day')}" for name, value in model.limits.items())
        table.add_row(model.name, model.api, model.model, ", ".join(model.urls), limits or "none")
    return table


def replica_table(replicas: Iterable[ReplicaState]) -> Table:
    """Make one row per rank, grouped by replica."""
    columns = ("MODEL", "REPLICA", "SPLIT", "PHASE", "RESUME", "RANK", "NODE", "PID", "GiB")
    table = simple_table(*columns, wraps=("MODEL", "NODE"))
    for state in replicas:
        _replica_rows(table, state)
    return table


def phase_lines(replicas: Iterable[ReplicaState], at_s: float, starts: Starts) -> Iterator[Text]:
    """Yield how long each start lasts by now, and why a replica does not serve.

    at_s: when the replicas were looked at, on the clock of their ``announced_at_s``
    starts: model → node → how long the newest start took there
    """
    for state in replicas:
        before = starts.get(state.model, {}).get(state.node)
        times = phase_times(state, at_s, before) if state.phase in STARTING else ""
        if note := "; ".join(part for part in (times, state.detail) if part):
            style = COLOURS.get(state.phase, "cyan")
            yield Text(f"{state.model} {state.replica[-8:]} {state.phase.value}: {note}", style=style)


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
    table = simple_table("MODEL", "NODE", "READY IN", "SECONDS IN EACH PHASE", wraps=("SECONDS IN EACH PHASE",))
    for model, nodes in starts.items():
        for node, times in sorted(nodes.items()):
            table.add_row(model, node, f"{times.total_s:.1f} s", phase_words(times.phase_s))
    return table


def gateway_table(gateways: Iterable[GatewayReport]) -> Table:
    """Make one row per node."""
    table = simple_table("GATEWAY", "NODE", "PID", "IN FLIGHT", "REQUESTS", wraps=())
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
        names = ("TENANT", "WEIGHT", "PRIORITY", "REQUESTS/MIN", "TOKENS/MIN", "TOKENS/DAY", "MONEY/DAY", "CONCURRENT")
        columns = [column for column in zip(names, *rows, strict=True) if set(column[1:]) != {"-"}]
        table = simple_table(*(name for name, *_ in columns), wraps=())
        for row in zip(*(cells for _, *cells in columns), strict=True):
            table.add_row(*row)
        parts.append(table)
    return Group(*parts)


def _replica_rows(table: Table, state: ReplicaState) -> None:
    phase = Text(state.phase.value, style=COLOURS.get(state.phase, "cyan"))
    start = (state.model, state.replica[-8:], state.shape, phase, _resume_text(state))
    if not state.ranks:
        table.add_row(*start)
    for rank in state.ranks:
        memory_bytes = rank.memory_bytes or rank.rss_bytes
        table.add_row(
            *(start if rank.node_rank == 0 else [""] * len(start)),
            str(rank.node_rank),
            f"{rank.hostname} ({rank.address})",
            str(rank.pid or "-"),
            f"{memory_bytes / 2**30:.2f}" if memory_bytes else "",
        )


def _resume_text(state: ReplicaState) -> Text:
    """Show how the replica's answers can be resumed elsewhere, once that was tried."""
    if state.phase not in (Phase.READY, Phase.SUSPECT, Phase.DRAINING):
        return Text("")
    return Text(state.resume.value, style="yellow" if state.resume is ResumeLevel.NONE else "")
