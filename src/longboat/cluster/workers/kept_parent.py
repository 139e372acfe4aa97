"""Has Ray start its workers through the node's warm parent, and keeps that parent running beside Ray."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from longboat.cluster.workers import start_worker, warm_parent

__all__ = ("fork_workers", "pause_s")

OFF = "LONGBOAT_FORK_WORKERS"
"""Variable; 0 has Ray start each worker plainly."""

_STEADY_S = 30.0
_MAX_PAUSE_S = 60.0
_PATH_OF_WORKER = 8  # among the arguments of Ray's ``start_raylet``


def pause_s(num_short_lives: int) -> float:
    """Pause before the next parent, after this many in a row that ended soon: 1, 2, 4 … 60 s."""
    return min(_MAX_PAUSE_S, 2.0**num_short_lives)


def fork_workers(
    services: Any, run: Path, env: Mapping[str, str], keep: Callable[[Path, Mapping[str, str]], None] | None = None
) -> None:
    """Put our script in the place of Ray's among the arguments of the raylet, and keep a parent for it.

    services: Ray's module; where its function is not as expected, workers start plainly
    keep: what keeps the parent, in a thread of its own
    """
    if env.get(OFF) == "0":
        return
    services.start_raylet = _through_parent(services.start_raylet)
    threading.Thread(target=keep or _keep, args=(run, dict(env)), daemon=True).start()


def _through_parent(start_raylet: Callable[..., Any]) -> Callable[..., Any]:
    def start(*args: Any, **kwargs: Any) -> Any:
        given = list(args)
        if len(given) > _PATH_OF_WORKER and str(given[_PATH_OF_WORKER]).endswith("default_worker.py"):
            given[_PATH_OF_WORKER] = start_worker.__file__
        return start_raylet(*given, **kwargs)

    return start


def _keep(run: Path, env: Mapping[str, str]) -> None:
    """Start a parent again whenever it ended, unless none can be forked here. It ends with this process."""
    num_short_lives = 0
    while True:
        began_s = time.monotonic()
        argv = warm_parent.command(str(run / start_worker.SOCKET), os.getpid())
        if subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, check=False).returncode == warm_parent.UNABLE:
            return  # a machine where a library starts threads: each try takes seconds of a core
        num_short_lives = 0 if time.monotonic() - began_s > _STEADY_S else num_short_lives + 1
        time.sleep(pause_s(num_short_lives))
