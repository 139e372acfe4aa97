"""The turns of changes of the fleet: those of adapters within their client's time, and each write of the document.

A document is written whole, and Serve takes any: a change that was read before another one was written would undo it.
So one thread in the cluster writes at a time, by a mark in the store of Ray. Only the end of a fleet takes no turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from longboat.cluster.fleet.serve_rest import DashboardAwayError
from longboat.cluster.protocol.names import NAMESPACE
from longboat.core.errors import ClusterError
from longboat.telemetry import logger

__all__ = ("Change", "ChangeTurns", "Marks", "until_written", "writing")

LEASE_S = 40.0
"""A mark that stays for this long is of a process that died. A write takes a second or two."""
WAIT_S = 90.0
LOOK_EVERY_S = 0.05
_MARK = "writing"
_TRIES = 3
_HERE = threading.Lock()
_Result = TypeVar("_Result")
log = logger("writing")

Change = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Carries one order out; its ``timeout_s`` is what is left of the client's time. Raises nothing."""

_SHORT = frozenset({"count", "add_key", "remove_key"})
"""Orders that are a few writes. They wait for no adapter; ``writing`` keeps the writes apart."""


class ChangeTurns:
    """The turns of changes of adapters. One that does not get its turn in its client's time is not carried out."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def carry_out(self, change: Change, order: Mapping[str, Any]) -> dict[str, Any]:
        """Wait for the turn and carry the order out; return the change's answer, or a refusal with status 409.

        order: what ``change`` takes; ``timeout_s`` counts from now. One of a count or a key needs no turn.
        """
        if not _SHORT.isdisjoint(order):
            return await change(order)
        timeout_s = float(order["timeout_s"])
        deadline_s = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._turn.acquire()
        except TimeoutError:
            what = f"another change of the fleet still runs after {timeout_s:.0f} s, and this one was not carried out"
            return {"status": 409, "error": what, "hint": "ask again, or wait longer with ?timeout_s="}
        try:
            return await change({**order, "timeout_s": max(0.0, deadline_s - time.monotonic())})
        finally:
            self._turn.release()


class Marks(Protocol):
    """Marks that all processes of the cluster see."""

    def add(self, name: str, value: bytes) -> bool:
        """Return True where it was added, False where there is one of this name."""

    def get(self, name: str) -> bytes | None:
        """Return the value of a mark; None where there is none."""

    def remove(self, name: str) -> None:
        """Remove a mark."""


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Hold the turn from reading Serve's applications until what was written is read back, and never for a longer wait.

    A process without a connection to Ray has the turn among its own threads only. Raises ClusterError where others keep
    the turn, or the head is away.
    """
    with _HERE, _turn(marks) if (marks := _marks()) else contextlib.nullcontext():
        yield


def until_written(attempt: Callable[[], _Result | None], what: str = "this fleet") -> _Result:
    """Return what ``attempt`` returns once its write holds.

    attempt: reads the document, writes it changed, and reads it back; None: another command's document won
    what: is changed, for the error

    Raises ClusterError where another command wins each time.
    """
    for _ in range(_TRIES):
        if (found := attempt()) is not None:
            return found
    raise ClusterError(f"another command keeps changing {what}", hint="run the command again")


@contextlib.contextmanager
def _turn(marks: Marks) -> Iterator[None]:
    own = uuid.uuid4().hex.encode()
    try:
        _wait(marks, own)
        yield
    finally:
        with contextlib.suppress(DashboardAwayError):  # the mark ends with its lease
            if marks.get(_MARK) == own:
                marks.remove(_MARK)


def _wait(marks: Marks, own: bytes) -> None:
    seen, since_s, end_s = b"", 0.0, time.monotonic() + WAIT_S
    while not marks.add(_MARK, own):
        found, now_s = marks.get(_MARK), time.monotonic()
        if found == own:  # it was added, and the reply was lost
            return
        if found is not None and found != seen:
            seen, since_s = found, now_s
        elif (
            found and now_s - since_s > LEASE_S and _end_turn(marks, found, own, is_late=now_s - since_s > 2 * LEASE_S)
        ):
            continue
        if now_s > end_s:
            raise ClusterError(f"other commands have been changing this fleet for {WAIT_S:.0f} s", hint="try it again")
        time.sleep(LOOK_EVERY_S)


def _end_turn(marks: Marks, found: bytes, own: bytes, *, is_late: bool) -> bool:
    """Remove the mark of a process that died; return whether it is this process that did.

    One of those that wait does so, by a mark of its own: another one might remove the mark of the next writer.
    is_late: a process that began this long ago died as well
    """
    ending = f"{_MARK} {found.decode()}"
    if not marks.add(ending, own):
        if is_late:
            marks.remove(ending)
        return False
    if is_ours := marks.get(_MARK) == found:
        log.warning("a command that changed the fleet died: its turn is over")
        marks.remove(_MARK)
    marks.remove(ending)
    return is_ours


def _marks() -> Marks | None:
    if "ray" not in sys.modules:
        return None
    from ray.experimental import internal_kv

    return _RayMarks() if internal_kv._internal_kv_initialized() else None


class _RayMarks:
    """Marks in the store of Ray's head. A mark is added by one process only, also where several try at once."""

    def add(self, name: str, value: bytes) -> bool:
        from ray.experimental.internal_kv import _internal_kv_put

        with _told():
            return not _internal_kv_put(name, value, overwrite=False, namespace=NAMESPACE)

    def get(self, name: str) -> bytes | None:
        from ray.experimental.internal_kv import _internal_kv_get

        with _told():
            found: bytes | None = _internal_kv_get(name, namespace=NAMESPACE)
            return found

    def remove(self, name: str) -> None:
        from ray.experimental.internal_kv import _internal_kv_del

        with _told():
            _internal_kv_del(name, namespace=NAMESPACE)


@contextlib.contextmanager
def _told() -> Iterator[None]:
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        hint = "the node that runs the head must be up"
        raise DashboardAwayError(f"the cluster's head does not answer: {error}", hint=hint) from error
