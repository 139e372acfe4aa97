"""``longboat logs``: a model's engine logs, read by the keepers of the nodes they are on."""

from __future__ import annotations

import time
from dataclasses import dataclass

from longboat.cli.shared.cluster_at_hand import connect
from longboat.cluster.ray.session import Session
from longboat.core.errors import ClusterError, UserInputError

__all__ = ("run_logs",)

FOLLOW_EVERY_S = 0.5


@dataclass(slots=True)
class _Log:
    node_id: str
    replica: str
    node_rank: int
    offset: int | None = None


def run_logs(model: str, *, rank: int | None, replica: str | None, follow: bool, num_lines: int) -> None:
    """Print the newest logs of ``model``; with ``follow``, go on until interrupted.

    Raises UserInputError when no such log exists.
    """
    with connect() as session:
        logs = _find(session, model, rank, replica)
        many = len(logs) > 1
        _print_new(session, model, logs, num_lines, many)
        while follow:
            time.sleep(FOLLOW_EVERY_S)
            _print_new(session, model, logs, num_lines, many)


def _find(session: Session, model: str, rank: int | None, replica: str | None) -> list[_Log]:
    found: list[_Log] = []
    for node in session.nodes():
        try:
            entries = session.ask_keeper(node.node_id, "list_logs", model)
        except ClusterError:
            continue
        found += [_Log(node.node_id, name, number) for name, number, _ in entries]
    live = _live_replicas(session, model)
    wanted = [log for log in found if (replica is None and (not live or log.replica in live)) or _is(log, replica)]
    wanted = [log for log in wanted if rank is None or log.node_rank == rank]
    if not wanted:
        known = sorted({f"{log.replica} rank {log.node_rank}" for log in found})
        hint = f"there are: {', '.join(known[:8])}" if known else "longboat status lists the models"
        raise UserInputError(f"no log of {model}" + (f" rank {rank}" if rank is not None else ""), hint=hint)
    return sorted(wanted, key=lambda log: (log.replica, log.node_rank))


def _is(log: _Log, replica: str | None) -> bool:
    return replica is not None and (log.replica.startswith(replica) or log.replica.endswith(replica))


def _live_replicas(session: Session, model: str) -> set[str]:
    report = session.report()
    return {state.replica for state in report.replicas if state.model == model} if report else set()


def _print_new(session: Session, model: str, logs: list[_Log], num_lines: int, many: bool) -> None:
    for log in logs:
        try:
            log.offset, text = session.ask_keeper(
                log.node_id, "read_log", model, log.replica, log.node_rank, log.offset, num_lines
            )
        except ClusterError:
            continue
        for line in text.splitlines():
            print(f"{log.replica[-8:]}/rank{log.node_rank} | {line}" if many else line, flush=True)
