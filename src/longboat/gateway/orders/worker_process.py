"""A process that the console starts for one question: it reads JSON, writes JSON, and is ended with its children."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

__all__ = ("ask_worker",)

_MAX_ANSWER_BYTES = 8 << 20
_LOWEST = 19


async def ask_worker(
    command: Sequence[str], body: bytes, run: Path | None, deadline_s: float, *, is_lowest: bool = False
) -> dict[str, Any]:
    """Ask one process, and end it and its children whatever happens.

    run: the run folder of this node, in which the cluster is found; None: the user's own
    is_lowest: run it with the lowest priority

    Raises TimeoutError, OSError, and ValueError where the answer cannot be read.
    """
    worker = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, **({"LONGBOAT_RUN": str(run)} if run else {})},
        cwd="/",
        start_new_session=True,
    )
    try:
        if is_lowest:
            _lower(worker.pid)
        async with asyncio.timeout(deadline_s):
            return await _exchange(worker, body)
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.pid, signal.SIGKILL)
        await worker.wait()


def _lower(pid: int) -> None:
    """Give a process that leads a session the lowest priority, among its session and among all sessions.

    Linux divides the processors among sessions first (autogroups, sched(7)): there a priority counts inside one only.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, _LOWEST)
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(_LOWEST))


async def _exchange(worker: asyncio.subprocess.Process, body: bytes) -> dict[str, Any]:
    assert worker.stdin is not None and worker.stdout is not None
    with contextlib.suppress(ConnectionError):
        if not worker.stdin.is_closing():  # the worker has ended already, and uvloop refuses to write
            worker.stdin.write(body)
        await worker.stdin.drain()
    worker.stdin.close()
    pieces, size = [], 0
    while piece := await worker.stdout.read(1 << 18):
        pieces.append(piece)
        size += len(piece)
        if size > _MAX_ANSWER_BYTES:
            raise ValueError(f"its answer is longer than {_MAX_ANSWER_BYTES} bytes")
    if not pieces:
        raise ValueError("it ended without an answer")
    found = orjson.loads(b"".join(pieces))
    if not isinstance(found, dict):
        raise ValueError("its answer is not an object")
    return found
