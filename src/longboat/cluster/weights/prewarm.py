"""Fetches of weights before a replica needs them: one at a time, in a thread that nothing else waits for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
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
        self._wanted: frozenset[str] = frozenset()
        self._waiting: set[str] = set()  # sources whose fetch is under way, or waits for its turn
        self._retry_at_s: dict[str, float] = {}  # never for a source that was fetched
        self._wait_s: dict[str, float] = {}

    def want(self, sources: Collection[str], now_s: float) -> None:
        """Fetch each of these sources that was not fetched yet and did not fail a short time ago, and no other.

        A fetch under way of another source ends at its next report; what it fetched stays.
        """
        wanted = frozenset(sources)
        for added in wanted - self._wanted:  # also one that left and came back
            self._retry_at_s.pop(added, None)
            self._wait_s.pop(added, None)
        self._wanted = wanted
        for source in sources:
            if source not in self._waiting and self._retry_at_s.get(source, now_s) <= now_s:
                self._waiting.add(source)
                self._pool.submit(self._fetch, source)

    @property
    def is_busy(self) -> bool:
        """Whether a fetch is under way, or waits for its turn."""
        return bool(self._waiting)

    def _fetch(self, source: str) -> None:
        try:
            if source in self._wanted:
                self._hold(source, lambda progress: self._go_on(source)).release()
                self._retry_at_s[source] = math.inf
        except Exception as error:  # a thread's root: the next try must come
            if source in self._wanted:
                wait_s = self._wait_s[source] = min(MOST_RETRY_S, self._wait_s.get(source, FIRST_RETRY_S / 2) * 2)
                self._retry_at_s[source] = time.monotonic() + wait_s
                log.warning("%s cannot be fetched before it is needed; next try in %.0f s: %s", source, wait_s, error)
        finally:
            self._waiting.discard(source)

    def _go_on(self, source: str) -> None:
        if source not in self._wanted:
            raise ClusterError(f"this node needs no weights of {source} any more")
