"""``longboat scale``, ``pause`` and ``resume``: change the number of a model's replicas, without the fleet file."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

from longboat.cli.shared.cluster_at_hand import connect
from longboat.cluster.counts.by_hand import Hold
from longboat.cluster.ray.count_changes import Verb, change_hold
from longboat.core.errors import ClusterError, UserInputError
from longboat.core.states import Phase
from longboat.user import user_name

if TYPE_CHECKING:
    from longboat.cluster.protocol.messages import FleetReport
    from longboat.cluster.ray.session import Session

__all__ = ("is_done", "run_pause", "run_resume", "run_scale")

POLL_S = 0.3
AUTO = "auto"
OVER = (Phase.FAILED, Phase.GONE)


def run_scale(model: str, count: str, *, wait: bool, timeout_s: float) -> None:
    """Give a model another number of replicas; ``auto`` lets the fleet file decide again.

    Raises UserInputError where it cannot have that number, ClusterError where it has not after ``timeout_s``.
    """
    _run(model, "scale", asked=_count(count), wait=wait, timeout_s=timeout_s)


def run_pause(model: str, *, wait: bool, timeout_s: float) -> None:
    """Take all replicas of a model out of use; no request wakes it. Raises as ``run_scale``."""
    _run(model, "pause", wait=wait, timeout_s=timeout_s)


def run_resume(model: str, *, wait: bool, timeout_s: float) -> None:
    """End a pause: the model has as many replicas as before it. Raises as ``run_scale``."""
    _run(model, "resume", wait=wait, timeout_s=timeout_s)


def _count(text: str) -> int | None:
    if text == AUTO:
        return None
    if text.isascii() and text.isdecimal() and len(text) < 7:
        return int(text)
    raise UserInputError(f"{text!r} is not a number of replicas", hint=f"write a number, or {AUTO}")


def _run(model: str, verb: Verb, *, asked: int | None = None, wait: bool, timeout_s: float) -> None:
    with connect() as session:
        hold = change_hold(session, model, verb, asked=asked, by=f"{user_name()}@{socket.gethostname()}")
        _end(session, model, hold, wait=wait, timeout_s=timeout_s)


def _end(session: Session, model: str, hold: Hold, *, wait: bool, timeout_s: float) -> None:
    """Wait until the model has its number of replicas, and say what it is."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        report = session.try_report()
        if report is not None and not report.partial and is_done(report, model, hold, wait=wait):
            print(_words(report, model))
            return
        time.sleep(POLL_S)
    raise ClusterError(
        f"{model} does not have its number of replicas after {timeout_s:.0f} s",
        hint="the change continues: longboat status shows it; is there room for its replicas?",
    )


def is_done(report: FleetReport, model: str, hold: Hold, *, wait: bool) -> bool:
    """Return whether the controller decides by this order, and with ``wait`` whether its replicas are ready."""
    count = report.counts.get(model)
    if count is None or count.held_s != hold.since_s:
        return False
    here = [state for state in report.replicas if state.model == model and state.phase not in OVER]
    return not wait or (len(here) == count.wanted and all(state.phase is Phase.READY for state in here))


def _words(report: FleetReport, model: str) -> str:
    count = report.counts[model]
    ready = sum(state.model == model and state.phase is Phase.READY for state in report.replicas)
    more = "; longboat up of a file ends this" if count.by not in ("file", "scaling") else ""
    if count.paused:
        return f"{model} is paused: longboat resume {model} ends that{more}"
    replicas = "1 replica" if count.wanted == 1 else f"{count.wanted} replicas"
    return f"{model}: {replicas} wanted, {ready} ready ({count.why}){more}"
