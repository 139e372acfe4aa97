"""The turn to write the document of the fleet, which one thread in the cluster has at a time.

A document is written whole, and Serve takes any: a change that was read before another one was written would undo it.
The turn is a mark in the store of Ray, which commands without Ray reach through the node daemon. Imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, TypeVar

from longboat.cluster.node.head_question import HEAD_HINT, HeadAwayError, asked_within
from longboat.cluster.protocol.names import NAMESPACE
from longboat.core.errors import ClusterError
from longboat.telemetry import logger

__all__ = (
    "Marks",
    "TurnOverError",
    "check_turn",
    "ray_marks",
    "until_written",
    "warn_if_late",
    "writing",
)

LEASE_S = 15.0
"""A writer that gives no sign of life for this long died."""
RENEW_S = 2.0
"""Between two signs of life. A write takes a second or two, so that most give none."""
WAIT_S = 90.0
LOOK_EVERY_S = 0.05
_MARK = "writing"
_TRIES = 3
_HERE = threading.Lock()
_IN_HAND = threading.local()
"""``turn``: the marks and the own mark of the thread's turn; None outside a turn."""
_Result = TypeVar("_Result")
log = logger("writing")


class TurnOverError(ClusterError):
    """Another process ended this thread's turn, because it gave no sign of life."""


class Marks(Protocol):
    """Marks that all processes of the cluster see. Each method raises ClusterError where the store is away."""

    def add(self, name: str, value: bytes) -> bool:
        """Return True where it was added, False where there is one of this name."""

    def put(self, name: str, value: bytes) -> None:
        """Add a mark, or replace it."""

    def get(self, name: str) -> bytes | None:
        """Return the value of a mark; None where there is none."""

    def remove(self, name: str) -> None:
        """Remove a mark."""


@contextlib.contextmanager
def writing(marks: Marks | None = None, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the turn from reading Serve's applications until what was written is read back, and never for a longer wait.

    marks: None: those of Ray. A process without a connection to Ray has the turn among its own threads only
    wait_s: longest wait for the turn

    Raises ClusterError where others keep the turn, or the head is away.
    """
    end_s = time.monotonic() + wait_s
    if not _HERE.acquire(timeout=wait_s):
        raise _busy(wait_s)
    try:
        marks = marks or ray_marks()
        with contextlib.nullcontext() if marks is None else _turn(marks, end_s, wait_s):
            yield
    finally:
        _HERE.release()


def until_written(attempt: Callable[[], _Result | None], what: str = "this fleet") -> _Result:
    """Return what ``attempt`` returns once its write holds.

    attempt: reads the document, writes it changed, and reads it back; None: another command's document won
    what: is changed, for the error

    Raises ClusterError where another command wins each time.
    """
    for _ in range(_TRIES):
        with contextlib.suppress(TurnOverError):
            if (found := attempt()) is not None:
                return found
    raise ClusterError(f"another command keeps changing {what}", hint="run the command again")


def check_turn() -> None:
    """Check that the thread's turn, if it has one, is not over: a process that was stopped may wake after its lease.

    Raises TurnOverError where another process may write by now, HeadAwayError where the store is away.
    """
    if (turn := getattr(_IN_HAND, "turn", None)) is None:
        return
    marks, own = turn
    if marks.get(_MARK) != own:
        raise TurnOverError("this command was stopped while it changed the fleet", hint="run the command again")


def warn_if_late() -> None:
    """Warn, after a write, where the thread's turn was over by then: the process was stopped right before the write.

    Another one may have written meanwhile, and what it read back is undone.
    """
    try:
        check_turn()
    except TurnOverError:
        log.warning(
            "this command was stopped right before it changed the fleet: a change that another command made meanwhile "
            "may be undone; longboat status shows what runs"
        )
    except ClusterError:  # the store is away, and the write is done
        return


@contextlib.contextmanager
def _turn(marks: Marks, end_s: float, wait_s: float) -> Iterator[None]:
    own, is_over = os.urandom(16).hex().encode(), threading.Event()
    life = threading.Thread(target=_live, args=(marks, own, is_over), name="write-turn", daemon=True)
    try:
        _wait(marks, own, end_s, wait_s)
        life.start()
        _IN_HAND.turn = marks, own
        yield
    finally:
        _IN_HAND.turn = None
        is_over.set()
        if life.ident is not None:
            life.join(RENEW_S)
        with contextlib.suppress(ClusterError):  # the mark ends with its lease
            if marks.get(_MARK) == own:
                marks.remove(_MARK)
            if marks.get(_sign(own)) is not None:
                marks.remove(_sign(own))


def _live(marks: Marks, own: bytes, is_over: threading.Event) -> None:
    """Give signs of life beside the mark. The mark stays as it is: by now it may be that of the next writer."""
    num_given = 0
    while not is_over.wait(RENEW_S):
        num_given += 1
        with contextlib.suppress(ClusterError):
            marks.put(_sign(own), b"%d" % num_given)
            if is_over.is_set():  # a slow store took it after the turn, which removed the signs before
                marks.remove(_sign(own))


def _sign(writer: bytes) -> str:
    return f"{_MARK} {writer.decode()} lives"


def _wait(marks: Marks, own: bytes, end_s: float, wait_s: float) -> None:
    seen, sign, since_s, alive_s = b"", b"", 0.0, 0.0
    while not marks.add(_MARK, own):
        found, now_s = marks.get(_MARK), time.monotonic()
        if found == own:  # it was added, and the reply was lost
            return
        if found is not None and found != seen:
            seen, sign, since_s, alive_s = found, b"", now_s, now_s
        elif found and now_s - alive_s > LEASE_S:
            if (given := marks.get(_sign(found)) or b"") != sign:
                sign, since_s, alive_s = given, now_s, now_s
            elif _end_turn(marks, found, own, is_late=now_s - since_s > 2 * LEASE_S):
                continue
        if now_s > end_s:
            raise _busy(wait_s)
        time.sleep(LOOK_EVERY_S)


def _busy(wait_s: float) -> ClusterError:
    return ClusterError(f"other commands have been changing this fleet for {wait_s:.0f} s", hint="try it again")


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
        marks.remove(_sign(found))
    marks.remove(ending)
    return is_ours


def ray_marks() -> Marks | None:
    """Return the marks in the store of Ray's head; None in a process without a connection to Ray."""
    if "ray" not in sys.modules:
        return None
    from ray.experimental import internal_kv

    return _RayMarks() if internal_kv._internal_kv_initialized() else None


class _RayMarks:
    """Marks in the store of Ray's head. A mark is added by one process only, also where several try at once."""

    def add(self, name: str, value: bytes) -> bool:
        return not _ask("_internal_kv_put", name, value, overwrite=False)

    def put(self, name: str, value: bytes) -> None:
        _ask("_internal_kv_put", name, value, overwrite=True)

    def get(self, name: str) -> bytes | None:
        found: bytes | None = _ask("_internal_kv_get", name)
        return found

    def remove(self, name: str) -> None:
        _ask("_internal_kv_del", name)


def _ask(call: str, *args: object, **more: object) -> Any:
    """Call a function of Ray's store. Raises HeadAwayError where the head does not answer."""
    from ray.exceptions import RayError
    from ray.experimental import internal_kv

    try:
        return asked_within(partial(getattr(internal_kv, call), *args, namespace=NAMESPACE, **more))
    except RayError as error:
        raise HeadAwayError(f"the cluster's head does not answer: {error}", hint=HEAD_HINT) from error
