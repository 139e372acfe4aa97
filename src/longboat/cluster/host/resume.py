"""``longboat node start`` where this machine has been a node: it becomes again what its record says it was."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from pathlib import Path

from longboat import __version__
from longboat.cluster.host.adopted import ray_here, spawn_runner
from longboat.cluster.host.choices import NodeRequest
from longboat.cluster.host.ray_node import is_anything_left, start_again, start_node, stop_node, wait_until_kept
from longboat.cluster.host.ray_start import can_connect
from longboat.cluster.host.record import ClusterRecord, load_record
from longboat.core.errors import ClusterError, UserInputError
from longboat.folders import run_folder

__all__ = ("keep_or_start", "request_of", "resume_node")

_HEAD_DEADLINE_S = 300.0
_LOOK_EVERY_S = 1.0
END_S, _PAUSE_S = 60.0, 0.2
"""A stop gives a node's runner 30 s. One that was interrupted before may have left it as it was."""


def resume_node(
    run: Path | None = None,
    on_progress: Callable[[str], None] = lambda _text: None,
    *,
    head_s: float = _HEAD_DEADLINE_S,
) -> ClusterRecord:
    """Return with the node up as it was; one that runs is left alone.

    head_s: how long a worker waits for its head, which may be starting too
    Raises UserInputError where this machine has not been a node, ClusterError where the node cannot be brought back.
    """
    run = run or run_folder()
    record = load_record(run)
    if record is None:
        what = "this machine has not been a node, so there is nothing to resume"
        raise UserInputError(what, hint="say which: a new cluster (--head, --local), or one to join (--join ADDRESS)")
    if record.is_kept and record.is_ended:
        _wait_for_end(record, on_progress)
    elif record.is_kept:
        return wait_until_kept(run, on_progress)
    if not record.is_ended and ray_here(record) is not None:
        spawn_runner(run, os.environ)
        return wait_until_kept(run, on_progress)
    if record.role == "worker":
        _wait_for_head(record, head_s, on_progress)
    return start_again(record, request_of(record), on_progress)


def keep_or_start(
    request: NodeRequest, run: Path | None = None, on_progress: Callable[[str], None] = lambda _text: None
) -> ClusterRecord:
    """Return with the node up as ``request`` says, for a service manager that starts it again and again.

    What an earlier start of the same service left is kept, with the answers that it streams; what is left of another
    node, or of another version of Longboat, is ended first.
    Raises as ``start_node`` and ``resume_node`` do.
    """
    run = run or run_folder()
    if is_anything_left(run):
        record = load_record(run)
        if record is not None and _is_as_asked(record, request) and not record.is_ended:
            return resume_node(run, on_progress)
        stop_node(run, keep_state=True)
    return start_node(request, run, on_progress)


def _is_as_asked(record: ClusterRecord, request: NodeRequest) -> bool:
    asked = json.loads(json.dumps(asdict(replace(request, started_by_up=record.started_by_up))))
    return dict(record.request) == asked and record.versions.get("longboat") == __version__


def request_of(record: ClusterRecord) -> NodeRequest:
    """Return the request that makes the same node again: a head at the same address, with the same state."""
    known = {field.name for field in fields(NodeRequest)}
    asked = NodeRequest(**{name: value for name, value in record.request.items() if name in known})
    asked = replace(asked, started_by_up=record.started_by_up)
    if record.role == "worker":
        return replace(asked, join=record.gcs_address, token_file=record.token_file)
    host, _, port = record.gcs_address.rpartition(":")
    is_local = asked.is_local or host == "127.0.0.1"
    return replace(
        asked,
        is_local=is_local,
        address="" if is_local else host,
        port=int(port),
        token_file=record.token_file,
        storage=str(Path(record.storage).parent),
    )


def _wait_for_end(record: ClusterRecord, on_progress: Callable[[str], None]) -> None:
    begin_s = time.monotonic()
    while record.is_kept:
        waited_s = time.monotonic() - begin_s
        if waited_s > END_S:
            what = f"this node is being stopped, and the process {record.runner_pid} that keeps it has not ended"
            raise ClusterError(what, hint="longboat node stop ends it")
        on_progress(f"waiting for the end of the node: {waited_s:.0f} s")
        time.sleep(_PAUSE_S)


def _wait_for_head(record: ClusterRecord, head_s: float, on_progress: Callable[[str], None]) -> None:
    begin_s = time.monotonic()
    while not can_connect(record.gcs_address, _LOOK_EVERY_S):
        waited_s = time.monotonic() - begin_s
        if waited_s > head_s:
            raise ClusterError(
                f"the head at {record.gcs_address} does not answer, to which this machine belongs",
                hint="start the head first; longboat node start --join ADDRESS joins another cluster",
            )
        on_progress(f"waiting for the head at {record.gcs_address}: {waited_s:.0f} s")
        time.sleep(_LOOK_EVERY_S)
