"""Fetches of weights before a replica needs them: one at a time, in a thread that nothing else waits for."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from longboat.core.errors import ClusterError
from longboat.telemetry import logger
from longboat.weights.fetch.node_weights import HeldWeights
from longboat.weights.pieces.rate import Progress

__all__ = ("Prewarm",)

FIRST_RETRY_S: Final = 10.0
MOST_RETRY_S: Final = 600.0
log = logger("weights")


class Prewarm:
    """The sources that this node fetches early.

    hold: fetches a source and pins it; it calls its second argument with the progress, which may raise
    """

    def __init__(self, hold: Callable[[str, Callable[[Progress], None]], HeldWeights]) -> None:
        self._hold = hold
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prewarm")
        self._waiting: set[str] = set()  # sources whose fetch is under way, or waits for its turn
        self._retry_at_s: dict[str, float] = {}  # never for a source that was fetched
        self._wait_s: dict[str, float] = {}
        self._ended = threading.Event()

    def want(self, sources: Iterable[str], now_s: float) -> None:
        """Fetch each source that was not fetched yet and did not fail a short time ago."""
        for source in sources:
            if source not in self._waiting and self._retry_at_s.get(source, now_s) <= now_s:
                self._waiting.add(source)
                self._pool.submit(self._fetch, source)

    @property
    def is_busy(self) -> bool:
        """Whether a fetch is under way, or waits for its turn."""
        return bool(self._waiting)

    def stop(self) -> None:
        """Fetch nothing more. A fetch under way ends at its next report; what it fetched stays."""
        self._ended.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, source: str) -> None:
        try:
            self._hold(source, self._go_on).release()
            self._retry_at_s[source] = math.inf
        except Exception as error:  # a thread's root: the next try must come
            wait_s = self._wait_s[source] = min(MOST_RETRY_S, self._wait_s.get(source, FIRST_RETRY_S / 2) * 2)
            self._retry_at_s[source] = time.monotonic() + wait_s
            if not self._ended.is_set():
                log.warning("%s cannot be fetched before it is needed; next try in %.0f s: %s", source, wait_s, error)
        finally:
            self._waiting.discard(source)

    def _go_on(self, _progress: Progress) -> None:
        if self._ended.is_set():
            raise ClusterError("this node left the swarm while it fetched weights")
