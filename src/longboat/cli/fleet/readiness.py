"""Watches a fleet come up: shows it, tells when it is ready, and gives up when that will not happen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from rich.console import Console

from longboat.cluster.protocol.messages import Announcement, FleetReport, GatewayReport
from longboat.core.errors import ClusterError, EngineError, LongboatError
from longboat.core.states import Phase, ReplicaState

__all__ = ("Goal", "RunningFleet", "Watch", "is_ready", "wait_ready")

POLL_S = 0.2
GIVE_UP_AFTER_FAILURES = 3
GATEWAY_PATIENCE_S = 20.0
DAEMON_PATIENCE_S = 60.0
MAX_NAMED_LOGS = 4


class RunningFleet(Protocol):
    """The questions to the cluster; ``Session`` answers them."""

    def try_report(self) -> FleetReport | None: ...

    def given_up(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What has to be true in the end.

    document: the fleet's text that the controller must have
    before: texts that the controller may show until then; None: any. Another text is that of another command
    wanted: model → replicas; digests: model → what its replicas must have been started with to count as ready;
    where a model has none, any will do
    outlives_failure: whether the fleet, or what was there before, goes on running when this does not come true
    remedy: what to do when it does not
    started: a model without the file that is waited for; other commands may change the rest of the fleet meanwhile
    """

    document: str
    wanted: Mapping[str, int]
    digests: Mapping[str, str]
    outlives_failure: bool = False
    remedy: str = "fix the cause and run longboat up again"
    started: str = ""
    before: frozenset[str] | None = None

    def is_of(self, report: FleetReport) -> bool:
        """Return whether the controller has what is waited for."""
        return bool(self.started) or report.document == self.document

    def is_lost(self, report: FleetReport, *, seen: bool) -> bool:
        """Return whether another command's fleet took the place of this one. seen: the controller had this one"""
        if self.is_of(report):
            return False
        return seen or (self.before is not None and report.document not in self.before)

    def changed_by(self, report: FleetReport) -> Goal:
        """Return the goal after another command changed the fleet: its models that are still there, as they are now."""
        wanted = {model: count.wanted for model, count in report.counts.items() if model in self.wanted}
        digests = {model: digest for model, digest in report.updating.items() if model in wanted}
        return replace(self, document=report.document, wanted=wanted, digests=digests)


@dataclass(slots=True)
class Watch:
    """What was seen so far. Pure: the clock is an argument.

    failed: model → its replicas that did not start; troubled: node → its gateway's problem, and since when
    """

    goal: Goal
    failed: dict[str, set[str]] = field(default_factory=dict)
    troubled: dict[str, tuple[str, float]] = field(default_factory=dict)

    def see(self, report: FleetReport, given_up: Mapping[str, str], now_s: float) -> LongboatError | None:
        """Return why waiting longer makes no sense; None while it does. given_up: model → why Serve stopped trying."""
        return self._ended(report) or self._models(report, given_up) or self._gateways(report.gateways, now_s)

    def _ended(self, report: FleetReport) -> ClusterError | None:
        model = self.goal.started
        if not model or model in report.started:
            return None
        return ClusterError(f"{model} was ended by another command", hint="longboat status shows what runs")

    def _models(self, report: FleetReport, given_up: Mapping[str, str]) -> EngineError | None:
        for model, digest in self.goal.digests.items():
            if report.taken_back.get(model, ("", ""))[0] == digest:
                return _taken_back(model, report.taken_back[model][1])
        for model, failure in report.failures.items():
            if model in report.updating or model not in self.goal.wanted:
                continue  # the controller takes an update back, and says so
            failed = self.failed.setdefault(model, set())
            failed.add(failure.state.replica)
            if len(failed) >= GIVE_UP_AFTER_FAILURES or model in given_up:
                return _does_not_start(model, failure, self.goal)
        for model in self.goal.digests:
            if model in given_up and model not in report.updating:
                return EngineError(f"model {model} cannot be deployed: {given_up[model]}", hint=_next((), self.goal))
        return None

    def _gateways(self, gateways: Iterable[GatewayReport], now_s: float) -> ClusterError | None:
        before, self.troubled = self.troubled, {}
        for gateway in gateways:
            if not _cannot_start(gateway):
                continue
            problem, since_s = before.get(gateway.node_id, ("", now_s))
            since_s = since_s if problem == gateway.problem else now_s
            self.troubled[gateway.node_id] = (gateway.problem, since_s)
            if now_s - since_s >= _patience_s(gateway):
                return _no_gateway(gateway, now_s - since_s)
        return None


def wait_ready(
    fleet: RunningFleet,
    goal: Goal,
    console: Console,
    timeout_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    on_replaced: Callable[[str], None] = lambda text: None,
) -> None:
    """Show the fleet until all of it is ready.

    on_replaced: gets the text of the fleet that another command put in the place of this one, and that is waited for
    Raises EngineError when a model does not start, ClusterError when a gateway does not, or after ``timeout_s``.
    """
    from rich.live import Live

    from longboat.cli.shared.tables import fleet_view

    deadline_s = clock() + timeout_s
    watch, told, seen = Watch(goal), set[str](), False
    report: FleetReport | None = None
    with Live(console=console, refresh_per_second=5, transient=not console.is_terminal) as live:
        while True:
            report = fleet.try_report()
            if report is not None and goal.is_lost(report, seen=seen):
                lost = ", ".join(model for model in goal.wanted if model not in report.counts)
                gone = f": it does not have {lost} any more" if lost else ""
                told_lost = f"another command changed the fleet{gone}; waiting until that is ready"
                console.print(told_lost, highlight=False, soft_wrap=True)
                on_replaced(report.document)
                goal = goal.changed_by(report)
                watch = Watch(goal)
            if report is not None and goal.is_of(report):
                seen = True
                live.update(fleet_view(report, goal.wanted))
                if not console.is_terminal:
                    _tell(report, told, console)
                if is_ready(report, goal):
                    return
                if error := watch.see(report, fleet.given_up(), clock()):
                    raise error
            if clock() > deadline_s:
                raise _too_late(report, goal, timeout_s)
            sleep(POLL_S)


def is_ready(report: FleetReport, goal: Goal) -> bool:
    """Return whether all replicas answer, as they are wanted now, and every gateway is up and knows of them."""
    newest = (report.epoch, report.table_version)
    gateways_up = all(
        not gateway.problem and (gateway.epoch, gateway.table_version) == newest for gateway in report.gateways
    )
    return (
        bool(report.gateways)
        and not report.unheard
        and gateways_up
        and all(len(_ready(report, goal, model)) >= count for model, count in goal.wanted.items())
    )


def _ready(report: FleetReport, goal: Goal, model: str) -> list[ReplicaState]:
    digest = goal.digests.get(model)
    ready = (state for state in report.replicas if (state.model, state.phase) == (model, Phase.READY))
    return [state for state in ready if digest in (None, state.digest)]


def _tell(report: FleetReport, told: set[str], console: Console) -> None:
    """Print a line for each new phase and each new problem of a gateway, where the output is not a terminal."""
    lines = [f"{state.model} {state.replica[-8:]} {_phase_words(state)}" for state in report.replicas]
    lines += [f"gateway on {_place(gateway)}: {gateway.problem}" for gateway in report.gateways if gateway.problem]
    for line in lines:
        if line not in told:
            told.add(line)
            console.print(line, highlight=False, soft_wrap=True)


def _phase_words(state: ReplicaState) -> str:
    """Return the phase; of a ready replica, also where the time until then went."""
    from longboat.cli.shared.tables import phase_words

    if state.phase is not Phase.READY or not (times := phase_words(state.phase_s)):
        return state.phase.value
    return f"{state.phase.value}  {times}"


def _cannot_start(gateway: GatewayReport) -> bool:
    """Return whether the gateway cannot start. One that runs and went silent may be on a busy node."""
    return bool(gateway.problem) and gateway.pid is None


def _patience_s(gateway: GatewayReport) -> float:
    """Return how long to wait: a node that never spoke (its address is not known) may still be starting its daemon."""
    return GATEWAY_PATIENCE_S if gateway.address else DAEMON_PATIENCE_S


def _no_gateway(gateway: GatewayReport, waited_s: float) -> ClusterError:
    return ClusterError(
        f"no gateway on node {_place(gateway)}, for {waited_s:.0f} s: {gateway.problem}",
        hint="fix the cause there, or change gateway in the file, and run longboat up again; "
        "its log is gateway/gateway.log in that node's run folder",
    )


def _place(gateway: GatewayReport) -> str:
    if not gateway.hostname:
        return gateway.node_id[:8]
    return f"{gateway.hostname} ({gateway.address})"


def _does_not_start(model: str, failure: Announcement, goal: Goal) -> EngineError:
    message = f"model {model} does not start: {failure.state.detail}"
    return EngineError(message, log_tail=failure.log_tail, hint=_next([failure.state], goal))


def _taken_back(model: str, why: str) -> EngineError:
    return EngineError(
        f"the update of model {model} failed and was rolled back: {why}",
        hint=f"it serves as before; longboat logs {model} shows more; fix the cause and run longboat up again",
    )


def _too_late(report: FleetReport | None, goal: Goal, timeout_s: float) -> ClusterError:
    message = f"not ready after {timeout_s:.0f} s"
    if report is None or report.document != goal.document:
        return ClusterError(f"{message}: the fleet's controller does not answer", hint="is the head's node busy?")
    behind = []
    for model, count in goal.wanted.items():
        if (num_ready := len(_ready(report, goal, model))) < count:
            behind.append(f"model {model} has {num_ready} of {count} replicas")
    behind += [f"gateway on {_place(gateway)}: {gateway.problem}" for gateway in report.gateways if gateway.problem]
    slow = [state for state in report.replicas if state.phase is not Phase.READY]
    return ClusterError(f"{message}: {'; '.join(behind) or 'no gateway'}", hint=_next(slow, goal))


def _next(states: Iterable[ReplicaState], goal: Goal) -> str:
    """Say where to look. Keepers read logs for others only while a fleet is up; the files stay."""
    states = tuple(states)
    logs = [f"{r.log_path} on {r.hostname or r.address}" for state in states for r in state.ranks if r.log_path]
    named = "; ".join([*logs[:MAX_NAMED_LOGS], *(["…"] if len(logs) > MAX_NAMED_LOGS else [])])
    words = [f"the whole log is {named}"] if named else []
    if goal.outlives_failure:
        words += [f"longboat logs {model} shows it" for model in dict.fromkeys(state.model for state in states)]
    return "; ".join([*words, goal.remedy])
