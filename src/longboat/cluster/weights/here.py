"""Weights on this node: the daemon writes down how they are fetched, and agents fetch by that."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Final

from longboat.cluster.protocol.messages import WeightsOrder
from longboat.core.errors import ClusterError
from longboat.disk_sync import write_whole
from longboat.spec.types.weights import WeightsSpec
from longboat.telemetry import logger
from longboat.weights.fetch.node_weights import HeldWeights, NodeWeights
from longboat.weights.fetch.options_from import options_from
from longboat.weights.pieces.rate import Progress
from longboat.weights.store.store import Store
from longboat.weights.swarm.swarm_link import SwarmAddress

__all__ = ("fetch_progress", "followed", "hold_weights", "remove_order", "write_order")

FILE: Final = "weights.json"
ORDER_WAIT_S: Final = 30.0
"""An agent waits this long for an order that names trackers; then it fetches without the swarm."""
LOOK_EVERY_S: Final = 0.2
NOTE_EVERY_S: Final = 1.0
LOG_EVERY_S: Final = 10.0

log = logger("weights")


def write_order(run: Path, order: WeightsOrder, member: str) -> None:
    """Write down how this node fetches, for agents to read. Only this user can read it: the token is in it."""
    values = {"spec": dict(order.spec), "member": member, "trackers": list(order.trackers), "token": order.token}
    text = json.dumps(values)
    path = run / FILE
    try:
        if path.read_text() == text:
            return
    except OSError:
        pass
    write_whole(path, text, mode=0o600)


def remove_order(run: Path) -> None:
    """Remove what an earlier order wrote: agents wait for the next one."""
    (run / FILE).unlink(missing_ok=True)


def hold_weights(
    source: str, home: Path, run: Path, on_progress: Callable[[Progress], None], *, wait_s: float = ORDER_WAIT_S
) -> HeldWeights:
    """Fetch a source where it is missing, and keep it from eviction. Blocks.

    Raises as ``NodeWeights.hold`` does, and ClusterError where the node's daemon has not written how it is fetched.
    """
    values = _order(run, wait_s)
    options = options_from(WeightsSpec.model_validate(values["spec"], strict=False))
    weights = NodeWeights(home, options, _swarm(values), latest_swarm=lambda: _latest_swarm(run))
    return weights.hold(source, on_progress)


async def followed(fetch: Coroutine[Any, Any, None], source: str, home: Path, note: Callable[[str], None]) -> None:
    """Wait for a fetch; note once a second how far this node is, and log it now and then."""
    task, logged_s = asyncio.ensure_future(fetch), time.monotonic()
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=NOTE_EVERY_S)
            progress = await asyncio.to_thread(fetch_progress, source, home)
            told = f"fetches its weights: {progress}" if progress else "fetches its weights"
            note(told)
            if time.monotonic() - logged_s > LOG_EVERY_S:
                logged_s = time.monotonic()
                log.info("%s: %s", source, told)
        await task
    finally:
        task.cancel()


def fetch_progress(source: str, home: Path) -> Progress | None:
    """Return how far the fetch of a source is, in whichever process of this node."""
    found = (stored.progress for stored in Store(home).list() if stored.source == source)
    return next((progress for progress in found if progress is not None), None)


def _order(run: Path, wait_s: float) -> dict[str, Any]:
    """Return what the daemon wrote, once it names a tracker, or else after a while."""
    end_s = time.monotonic() + wait_s
    while True:
        values = _read(run)
        if values.get("trackers") or (values and time.monotonic() >= end_s):
            return values
        if time.monotonic() >= end_s:
            raise ClusterError(
                f"the daemon of this node has not written how weights are fetched ({run / FILE})",
                hint="see in longboat status whether the node is there; the replica starts when its daemon is",
            )
        time.sleep(LOOK_EVERY_S)


def _read(run: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads((run / FILE).read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ClusterError(f"{run / FILE} cannot be read: {error}") from None
    return values


def _latest_swarm(run: Path) -> SwarmAddress | None:
    """Return the swarm of the newest order; None where it is not known now: a fetch under way stays where it is."""
    try:
        return _swarm(_read(run))
    except ClusterError:
        return None


def _swarm(values: Mapping[str, Any]) -> SwarmAddress | None:
    """Return the swarm of an order; None where the order names no tracker."""
    if not values.get("trackers"):
        return None
    return SwarmAddress(member=values["member"], trackers=tuple(values["trackers"]), token=values["token"])
