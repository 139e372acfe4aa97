"""Restarts nodes one by one: answers move away first, and the fleet is whole again before the next node restarts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from longboat.core.errors import ClusterError
from longboat.hosts.plan.whole import lacking, living_replicas
from longboat.hosts.remote.work import HostWork

__all__ = ("restart_worker",)

DRAIN_S = 120
WHOLE_S = 600.0
POLL_S = 3.0
NUM_LOOKS = 20
NO_FLEET = "no fleet is up"
"""Begins the message of ``longboat status`` where nothing can be lost by a restart."""


async def restart_worker(head: HostWork, worker: HostWork) -> None:
    """Restart a worker, and return when the fleet has the replicas again that it had before.

    Raises ClusterError where it does not get them: the next restart would take more of them away.
    """
    before = await _replicas(head, worker)
    await _drain(head, worker)
    await worker.live()
    await _until_whole(head, worker, before)


async def _replicas(head: HostWork, worker: HostWork) -> dict[str, int]:
    """Return how many replicas of each model live; a head that is busy is asked again."""
    for _ in range(NUM_LOOKS):
        document = await _status(head)
        if document is not None:
            return living_replicas(document) if "wanted" in document else {}
        await asyncio.sleep(POLL_S)
    worker.tell(worker.name, "the head does not say which replicas there are: nothing waits for them after the restart")
    return {}


async def _drain(head: HostWork, worker: HostWork) -> None:
    """Let the fleet move answers away from a node that is about to restart, where it can."""
    worker.tell(worker.name, "moving its answers to other nodes")
    command = (
        f"{head.host.plan.layout.launcher} drain node {worker.host.plan.address} --move --timeout {DRAIN_S} </dev/null"
    )
    try:
        done = await head.host.ssh.run(command, limit_s=DRAIN_S + 60.0)
    except ClusterError as error:
        worker.tell(worker.name, f"its answers were not moved: {error.message}")
        return
    if done.code:
        told = done.last_words.splitlines()[0] if done.last_words else ""
        worker.tell(worker.name, f"its answers were not moved: {told}")


async def _until_whole(head: HostWork, worker: HostWork, before: Mapping[str, int]) -> None:
    end_s, left, told = time.monotonic() + WHOLE_S, dict(before), ""
    while left:
        if (what := f"waiting for replicas: {_listed(left)}") != told:
            worker.tell(worker.name, told := what)
        if time.monotonic() > end_s:
            what = f"the fleet lacks replicas after its restart: {_listed(left)}"
            raise ClusterError(what, hint="longboat status --why shows the reasons")
        await asyncio.sleep(POLL_S)
        document = await _status(head)
        left = left if document is None or "wanted" not in document else lacking(before, document)


def _listed(left: Mapping[str, int]) -> str:
    return ", ".join(f"{number} of {model}" for model, number in sorted(left.items()))


async def _status(head: HostWork) -> dict[str, Any] | None:
    """Return what the head's command says: the fleet's state, or that no fleet is up. None where it says neither."""
    try:
        done = await head.host.ssh.run(f"{head.host.plan.layout.launcher} status --json </dev/null")
        document = json.loads(done.out)
    except (ClusterError, ValueError):
        return None
    return document if "wanted" in document or NO_FLEET in str(document.get("error")) else None
