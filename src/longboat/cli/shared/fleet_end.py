"""Ends the whole fleet, through its controller where that answers. Imports nothing heavy."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from longboat.core.errors import ClusterError

if TYPE_CHECKING:
    from longboat.cli.shared.quick_session import QuickSession
    from longboat.cluster.ray.session import Session

__all__ = ("end_fleet",)


def end_fleet(session: Session | QuickSession) -> None:
    """End models first, so that gateways answer to the last, then gateways, daemons and the controller.

    A controller that does not answer is ended anyway. Raises ClusterError when Serve does not answer.
    """
    trouble = _end_by_controller(session)
    try:
        if trouble:
            _end_in_turn(session, session.apps.end_all)
        else:  # commands refuse to change a fleet that ends
            session.apps.end_all()
        session.apps.wait_gone(session.end_unplaced if trouble else lambda: None)
    finally:
        if trouble:  # only now, since a controller that lives would start daemons, and ask for nodes, again
            _end_rest(session, trouble)


def _end_in_turn(session: Session | QuickSession, end: Callable[[], None]) -> None:
    from longboat.cluster.node.write_turn import until_written

    def attempt() -> bool:
        with _turn(session):
            end()
        return True

    until_written(attempt)


@contextlib.contextmanager
def _turn(session: Session | QuickSession) -> Iterator[None]:
    """Hold the turn to write: no command that read the fleet before may write it back. Go on where it cannot be had."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(session.writing())
        except ClusterError as error:
            print(f"warning: the fleet ends beside other changes of it ({error.message})", file=sys.stderr, flush=True)
        yield


def _end_by_controller(session: Session | QuickSession) -> str:
    """End the fleet in order; return why that failed, empty where it did not."""
    try:
        session.apps.check_controller()
        _end_in_turn(session, session.apps.end_models)
        session.apps.wait_models_gone(session.end_unplaced)
        session.end_nodes()
    except ClusterError as error:
        return error.message
    return ""


def _end_rest(session: Session | QuickSession, trouble: str) -> None:
    """End what the controller would have ended: daemons, and what it asked of Ray's autoscaler."""
    if failure := session.need_no_nodes():
        told = f"warning: Ray's autoscaler may still be asked for nodes ({failure})"
        print(told, file=sys.stderr, flush=True)
    silent = ", ".join(node_id[:8] for node_id in session.end_daemons())
    left = f"; no answer from nodes {silent}: longboat node stop there ends what is left" if silent else ""
    print(f"warning: the fleet was ended without its controller ({trouble}){left}", file=sys.stderr, flush=True)
