"""``longboat logs``: a model's engine logs, read by the daemons of the nodes they are on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longboat.cli.shared.cluster_at_hand import connect_quickly
from longboat.core.errors import ClusterError, UserInputError

if TYPE_CHECKING:
    from longboat.cli.shared.quick_session import QuickSession
    from longboat.cluster.ray.session import Session

__all__ = ("Log", "chosen_logs", "run_logs")

FOLLOW_EVERY_S = 0.5


@dataclass(slots=True)
class Log:
    """The log of one rank, on one node."""

    node_id: str
    replica: str
    node_rank: int
    offset: int | None = None


def run_logs(model: str, *, rank: int | None, replica: str | None, follow: bool, num_lines: int) -> None:
    """Print the newest logs of ``model``; with ``follow``, print new lines until interrupted.

    Raises UserInputError when no such log exists.
    """
    with connect_quickly() as session:
        logs = _find(session, model, rank, replica)
        many = len(logs) > 1
        _print_new(session, model, logs, num_lines, many)
        while follow:
            time.sleep(FOLLOW_EVERY_S)
            _print_new(session, model, logs, num_lines, many)


def _find(session: Session | QuickSession, model: str, rank: int | None, replica: str | None) -> list[Log]:
    found: list[Log] = []
    for node in session.nodes():
        try:
            entries = session.ask_daemon(node.node_id, "list_logs", model)
        except ClusterError:
            continue
        found += [Log(node.node_id, name, number) for name, number, _ in entries]
    report = session.report()
    live = [(state.model, state.replica) for state in report.replicas] if report else []
    return chosen_logs(found, live, model, rank, replica)


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


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def _is(log: Log, replica: str) -> bool:
    return log.replica.startswith(replica) or log.replica.endswith(replica)


def _print_new(session: Session | QuickSession, model: str, logs: list[Log], num_lines: int, many: bool) -> None:
    for log in logs:
        try:
            log.offset, text = session.ask_daemon(
                log.node_id, "read_log", model, log.replica, log.node_rank, log.offset, num_lines
            )
        except ClusterError:
            continue
        for line in text.splitlines():
            print(f"{log.replica[-8:]}/rank{log.node_rank} | {line}" if many else line, flush=True)
