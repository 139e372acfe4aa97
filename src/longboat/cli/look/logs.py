"""``longboat logs``: a model's engine logs, read by the daemons of the nodes they are on."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from longboat.cli.shared.cluster_at_hand import connect_quickly
from longboat.core.errors import ClusterError, UserInputError

if TYPE_CHECKING:
    from longboat.cli.shared.quick_session import QuickSession
    from longboat.cluster.ray.session import Session

__all__ = ("Log", "chosen_logs", "new_logs", "run_logs")

FOLLOW_EVERY_S = 0.5
LOOK_EVERY_S = 5.0
"""How often replicas that have started meanwhile are looked for."""


@dataclass(slots=True)
class Log:
    """The log of one rank, on one node."""

    node_id: str
    replica: str
    node_rank: int
    offset: int | None = None
    # The begin of a line whose end is not written yet.
    rest: str = ""
    # Why it could not be read the last time.
    problem: str = ""

    @property
    def key(self) -> tuple[str, str, int]:
        return self.node_id, self.replica, self.node_rank


def run_logs(model: str, *, rank: int | None, replica: str | None, follow: bool, num_lines: int) -> None:
    """Print the newest logs of ``model``; with ``follow``, print new lines until interrupted.

    Raises UserInputError when no such log exists, ClusterError when none can be read.
    """
    with connect_quickly() as session:
        logs = chosen_logs(*_look(session, model), model, rank, replica)
        _print_new(session, model, logs, num_lines, follow=follow)
        if not follow and all(log.problem for log in logs):
            raise ClusterError(logs[0].problem, hint="longboat status shows the nodes")
        looked_at_s = time.monotonic()
        while follow:
            time.sleep(FOLLOW_EVERY_S)
            if time.monotonic() - looked_at_s >= LOOK_EVERY_S:
                looked_at_s = time.monotonic()
                with contextlib.suppress(ClusterError):  # the next look finds them
                    logs += new_logs(logs, *_look(session, model), model, rank, replica)
            _print_new(session, model, logs, num_lines, follow=True)


def _look(session: Session | QuickSession, model: str) -> tuple[list[Log], list[tuple[str, str]]]:
    """Return all logs of a model, and model and replica of all that runs."""
    found: list[Log] = []
    for node in session.nodes():
        try:
            entries = session.ask_daemon(node.node_id, "list_logs", model)
        except ClusterError:
            continue
        found += [Log(node.node_id, name, number) for name, number, _ in entries]
    report = session.report()
    return found, [(state.model, state.replica) for state in report.replicas] if report else []


def chosen_logs(
    found: Sequence[Log], live: Sequence[tuple[str, str]], model: str, rank: int | None, replica: str | None
) -> list[Log]:
    """Return the logs to show: of one replica where ``replica`` names it, else of the live ones, else of all.

    live: model and replica of all that runs
    Raises UserInputError, with the names that there are, where no log is left.
    """
    if not found:
        models = ", ".join(sorted({name for name, _ in live})) or "none"
        raise UserInputError(f"no engine of {model!r} has written a log", hint=f"models that run: {models}")
    named = [log for log in found if replica is None or _is(log, replica)]
    if not named:
        known = sorted({log.replica for log in found})
        raise UserInputError(
            f"no replica of {model} is named {replica!r}", hint=f"replicas with logs: {_listed(known)}"
        )
    running = [log for log in named if replica is not None or (model, log.replica) in live] or named
    wanted = [log for log in running if rank is None or log.node_rank == rank]
    if not wanted:
        ranks = ", ".join(map(str, sorted({log.node_rank for log in running})))
        raise UserInputError(f"{model} has no rank {rank}", hint=f"ranks with logs: {ranks}")
    return sorted(wanted, key=lambda log: (log.replica, log.node_rank))


def new_logs(
    shown: Sequence[Log],
    found: Sequence[Log],
    live: Sequence[tuple[str, str]],
    model: str,
    rank: int | None,
    replica: str | None,
) -> list[Log]:
    """Return the logs, from their beginning, of replicas that run and are not shown yet."""
    keys = {log.key for log in shown}
    return [
        replace(log, offset=0)
        for log in found
        if log.key not in keys and (model, log.replica) in live and rank in (None, log.node_rank)
        if replica is None or _is(log, replica)
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _is(log: Log, replica: str) -> bool:
    return log.replica.startswith(replica) or log.replica.endswith(replica)


def _print_new(session: Session | QuickSession, model: str, logs: list[Log], num_lines: int, *, follow: bool) -> None:
    """Print what was written to the logs since the last time: while they are followed, whole lines."""
    for log in logs:
        label = f"{log.replica[-8:]}/rank{log.node_rank}"
        try:
            log.offset, text = session.ask_daemon(
                log.node_id, "read_log", model, log.replica, log.node_rank, log.offset, num_lines
            )
        except ClusterError as error:
            if error.message != log.problem:
                print(f"{label} cannot be read: {error.message}", file=sys.stderr, flush=True)
            log.problem = error.message
            continue
        whole, end, log.rest = (log.rest + text).rpartition("\n") if follow else (log.rest + text, "", "")
        log.problem = ""
        for line in f"{whole}{end}".splitlines():
            print(f"{label} | {line}" if len(logs) > 1 else line, flush=True)
