"""An event loop in a thread, for programs and tests that have none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ("loop_in_thread",)

END_DEADLINE_S = 60.0


@contextmanager
def loop_in_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """Run a new loop until the end of the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(END_DEADLINE_S)
        loop.close()
