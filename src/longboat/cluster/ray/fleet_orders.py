"""Changes that come through a gateway's admin API or console: the controller carries them out as commands do."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from longboat.cluster.fleet.adapters import running_fleet
from longboat.cluster.fleet.applications import ServeApplications
from longboat.cluster.fleet.serve_rest import ServeRest
from longboat.cluster.host.cluster_token import cluster_token
from longboat.cluster.node.write_turn import writing
from longboat.cluster.protocol.node_entry import read_node
from longboat.core.errors import ClusterError, LongboatError, UserInputError
from longboat.telemetry import logger
from longboat.user import user_home

if TYPE_CHECKING:
    from longboat.cluster.preflight.checks import PreflightRequest
    from longboat.cluster.protocol.messages import FleetReport
    from longboat.core.topology import Node
    from longboat.spec.files.keys_file import KeyBook

__all__ = ("carry_out",)

log = logger("controller")

POLL_S = 0.1
EXPECT_S = 30.0
INSPECT_S = 60.0
REPORT_S = 10.0
_KEY_TRIES = 2
_THREADS = ThreadPoolExecutor(16, thread_name_prefix="fleet-order")
"""Threads of changes alone, which end with the controller's process.

A change waits for gateways. The threads of the controller's loop inform them, and Serve allows it five.
"""
Report = Callable[[], Awaitable["FleetReport"]]


class ControllerSession:
    """The controller's own view of its cluster, for threads: it answers what a command's session answers."""

    def __init__(self, dashboard: str, report: Report, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        """timeout_s: the time that the change may take, from now"""
        self.rest = ServeRest(dashboard, cluster_token(os.environ, user_home()))
        self.apps = ServeApplications(self.rest)
        self._report = report
        self._loop = loop
        self._deadline_s = time.monotonic() + timeout_s

    def writing(self) -> AbstractContextManager[None]:
        """Hold the turn to write the document. Raises ClusterError where it is not free in the change's time."""
        return writing(wait_s=self._left_s())

    def nodes(self) -> tuple[Node, ...]:
        """Return all nodes that are alive."""
        import ray

        return tuple(read_node(entry) for entry in ray.nodes() if entry["Alive"])

    def inspect(self, node_ids: Sequence[str], request: PreflightRequest) -> Mapping[str, Any]:
        """Ask nodes what is on them. One that does not answer within the change's time has an exception."""
        from longboat.cluster.preflight.on_nodes import inspect_nodes

        return inspect_nodes(node_ids, request, within_s=min(INSPECT_S, self._left_s()))

    def try_report(self) -> FleetReport | None:
        """Return the controller's report; None where its loop is too busy for it."""

        async def report() -> FleetReport:
            return await self._report()

        try:
            return asyncio.run_coroutine_threadsafe(report(), self._loop).result(REPORT_S)
        except TimeoutError:
            return None

    def expect(self, document: str) -> None:
        """Wait until Serve has given the controller this document, or what another change put in its place since.

        Raises ClusterError where it has not in time.
        """
        within_s = min(EXPECT_S, self._left_s())
        deadline_s = time.monotonic() + within_s
        while not self._has_taken_over(document):
            if time.monotonic() >= deadline_s:
                hint = "it may still be carried out: longboat adapters list shows it"
                raise ClusterError(f"Serve did not pass the change on in {within_s:.0f} s", hint=hint)
            time.sleep(POLL_S)

    def _has_taken_over(self, document: str) -> bool:
        try:
            return self.apps.has_taken_over(self.try_report(), document)
        except ClusterError:  # Serve has the change already: a dashboard that is away for a moment undoes nothing
            return False

    def _left_s(self) -> float:
        return max(0.0, self._deadline_s - time.monotonic())


async def carry_out(report: Report, order: Mapping[str, Any], dashboard: str) -> dict[str, Any]:
    """Return what was done, or ``{"status", "error", "hint"}``. Raises nothing.

    Done: ``{"adapter": its row}``, with None after a removal, ``{"count": …}``, or ``{"key": …}``.
    order: ``{"add": {"model", "source", "name", "tenants"}}``, ``{"remove": name}`` (both of an adapter) or
    ``{"count": {"model", "verb", "replicas", "by"}}``, ``{"add_key": its record, which has a digest only}``,
    ``{"remove_key": id}``, ``{"kill": replica}``, and ``timeout_s``
    """
    try:
        session = ControllerSession(dashboard, report, asyncio.get_running_loop(), float(order["timeout_s"]))
        change = next((change for name, change in _CHANGES.items() if name in order), _changed)
        return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(change, session, order))
    except LongboatError as error:
        status = 400 if isinstance(error, UserInputError) else 503
        return {"status": status, "error": error.message, "hint": error.hint}
    except Exception as error:  # the client learns it, and the controller goes on
        log.warning("the fleet cannot be changed: %r", error)
        return {"status": 503, "error": f"the change failed ({type(error).__name__})", "hint": "longboat status"}


def _counted(session: ControllerSession, order: Mapping[str, Any]) -> dict[str, Any]:
    from longboat.cluster.ray.count_changes import change_hold

    asked = order["count"]
    hold = change_hold(session, asked["model"], asked["verb"], asked=asked["replicas"], by=asked["by"])
    return {"count": {"model": asked["model"], "replicas": hold.asked, "paused": hold.paused}}


def _key_added(session: ControllerSession, order: Mapping[str, Any]) -> dict[str, Any]:
    from longboat.cluster.ray.key_changes import add_key
    from longboat.core.policy import KeyRecord

    record = KeyRecord(**order["add_key"])
    return _keys_told(session, order, record.key_id, lambda: add_key(session, record), is_kept=True)


def _key_removed(session: ControllerSession, order: Mapping[str, Any]) -> dict[str, Any]:
    from longboat.cluster.ray.key_changes import remove_key

    key_id = str(order["remove_key"])
    return _keys_told(session, order, key_id, lambda: remove_key(session, key_id), is_kept=False)


def _keys_told(
    session: ControllerSession, order: Mapping[str, Any], key_id: str, change: Callable[[], KeyBook], *, is_kept: bool
) -> dict[str, Any]:
    """Change the keys, and wait until the gateways know; a gateway that is away learns them when it is heard.

    A command on another machine may have put the old keys back meanwhile: then the change is made once more.
    is_kept: the running fleet is to have the key after it. Raises ClusterError where it was undone twice.
    """
    from longboat.cluster.ray.key_changes import read_keys, wait_for_gateways

    for _ in range(_KEY_TRIES):
        num_informed, num_all = wait_for_gateways(session, change(), float(order["timeout_s"]) / (_KEY_TRIES + 1))
        if any(key.key_id == key_id for key in read_keys(session).keys) is is_kept:
            return {"key": {"id": key_id, "gateways": num_all, "informed": num_informed}}
    done = "made" if is_kept else "revoked"
    what = f"the key {key_id} was {done} {_KEY_TRIES} times, and a command on another machine undid it each time"
    raise ClusterError(what, hint="wait until that command has ended, and try again; longboat keys list shows the keys")


def _killed(session: ControllerSession, order: Mapping[str, Any]) -> dict[str, Any]:
    from longboat.cluster.ray.engine_kills import kill_engine

    return {"killed": kill_engine(session, str(order["kill"]))}


def _changed(session: ControllerSession, order: Mapping[str, Any]) -> dict[str, Any]:
    from longboat.cluster.ray.adapter_changes import adapter_entry, adapter_rows, add_adapter, remove_adapter

    timeout_s = float(order["timeout_s"])
    if "remove" in order:
        remove_adapter(session, str(order["remove"]), timeout_s)
        return {"adapter": None}
    asked = order["add"]
    entry = adapter_entry(asked["source"], asked["name"], asked["tenants"])
    add_adapter(session, asked["model"], entry, timeout_s)
    report = session.try_report()
    rows = adapter_rows(running_fleet({"text": report.document}), report) if report else []
    return {"adapter": next((row for row in rows if row["name"] == entry.name), None)}


_CHANGES: Mapping[str, Callable[[ControllerSession, Mapping[str, Any]], dict[str, Any]]] = {
    "count": _counted,
    "add_key": _key_added,
    "remove_key": _key_removed,
    "kill": _killed,
}
"""Kind of order → what carries it out; others are of adapters."""
