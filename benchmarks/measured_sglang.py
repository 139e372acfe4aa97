"""SGLang's server with a scheduler that measures itself: the main module of ``bench_sglang_prefixes``.

Each time that the scheduler has nothing to do, it writes its own CPU time (without the model's steps), the part of it
that sends prefixes, and the number of prefills to the file of ``LONGBOAT_BENCH_OUT``.
"""

from __future__ import annotations

import functools
import json
import os
import time
from pathlib import Path
from typing import Any

from longboat_sglang import launcher, plugin
from longboat_sglang.prefixes.tree import Sender

_register = plugin.register
_spent = {"own_s": 0.0, "send_s": 0.0, "prefills": 0}
_STEPS = ("ingest_requests", "get_next_batch_to_run", "process_batch_result")


def _timed(function: Any, name: str) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        start_s = time.thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            _spent[name] += time.thread_time() - start_s

    return call


def _counted(run_batch: Any) -> Any:
    @functools.wraps(run_batch)
    def call(scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        _spent["prefills"] += batch.forward_mode.is_extend()
        return run_batch(scheduler, batch, *args, **kwargs)

    return call


def _written(on_idle: Any) -> Any:
    written = [0]

    @functools.wraps(on_idle)
    def call(scheduler: Any) -> None:
        on_idle(scheduler)
        if written[0] != _spent["prefills"]:
            written[0] = int(_spent["prefills"])
            path = Path(os.environ["LONGBOAT_BENCH_OUT"])
            path.with_suffix(".new").write_text(json.dumps(_spent))
            path.with_suffix(".new").replace(path)

    return call


def register() -> None:
    """Be Longboat's plugin, and measure the scheduler."""
    _register()
    from sglang.srt.managers.scheduler import Scheduler

    for name in _STEPS:
        setattr(Scheduler, name, _timed(getattr(Scheduler, name), "own_s"))
    Scheduler.run_batch = _counted(Scheduler.run_batch)
    Scheduler.on_idle = _written(Scheduler.on_idle)
    Sender.send = _timed(Sender.send, "send_s")  # type: ignore[method-assign]


plugin.register = register

if __name__ == "__main__":
    launcher.main()
