"""Restarts nodes one by one: answers move away first, and the fleet is whole again before the next node restarts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Any

from longboat.core.errors import ClusterError
from longboat.hosts.plan.whole import lacking, ready_replicas
from longboat.hosts.remote.work import HostWork

__all__ = ("restart_worker",)

DRAIN_S = 120
WHOLE_S = 600.0
POLL_S = 3.0


async def restart_worker(head: HostWork, worker: HostWork) -> None:
    """Restart a worker, and return when the fleet has the replicas again that it had before.

    Raises ClusterError where it does not get them: the next restart would take more of them away.
    """
    document = await _status(head)
    before = ready_replicas(document) if document else {}
    await _drain(head, worker)
    await worker.live()
    await _until_whole(head, worker, before)


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
            raise ClusterError(f"the fleet lacks replicas after its restart: {_listed(left)}", hint="longboat status")
        await asyncio.sleep(POLL_S)
        document = await _status(head)
        left = left if document is None else lacking(before, document)


def _listed(left: Mapping[str, int]) -> str:
    return ", ".join(f"{number} of {model}" for model, number in sorted(left.items()))


async def _status(head: HostWork) -> dict[str, Any] | None:
    """Return the fleet's state as the head's command tells it; None where it tells none."""
    try:
        done = await head.host.ssh.run(f"{head.host.plan.layout.launcher} status --json </dev/null")
        document = json.loads(done.out)
    except (ClusterError, ValueError):
        return None
    return document if "wanted" in document else None
