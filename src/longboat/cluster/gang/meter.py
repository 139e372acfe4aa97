"""Measures an engine since it was ready, from its counters. Pure: the clock is an argument."""

from __future__ import annotations

from longboat.core.states import EngineActual
from longboat.engines.contract import EngineCounters

__all__ = ("Meter",)


class Meter:
    """The meter of one engine. It begins with the first counters that it sees, so readiness probes do not count."""

    def __init__(self) -> None:
        self._first: EngineCounters | None = None
        self._last: EngineCounters | None = None
        self._seen_at_s = 0.0
        self._weighted = 0.0

    def see(self, counters: EngineCounters, now_s: float) -> None:
        """Take in what the engine says at ``now_s``."""
        last = self._last
        if self._first is None or last is None or counters.num_itl < last.num_itl:
            self._first, self._weighted = counters, 0.0
        else:
            # Requests that decode at once, by Little's law; where a part of the time was idle, one at least.
            passed_s = max(1e-9, now_s - self._seen_at_s)
            running = max(1.0, (counters.itl_s - last.itl_s) / passed_s)
            self._weighted += running * (counters.num_itl - last.num_itl)
        self._last, self._seen_at_s = counters, now_s

    def actual(self, rank_bytes: int) -> EngineActual | None:
        """Return what is known now; None before the engine was asked."""
        first, last = self._first, self._last
        if first is None or last is None:
            return None
        tokens, answers = last.num_itl - first.num_itl, last.num_ttft - first.num_ttft
        return EngineActual(
            kv_blocks=last.kv_blocks,
            block_tokens=last.block_tokens,
            rank_bytes=rank_bytes,
            num_tokens=tokens,
            concurrency=self._weighted / tokens if tokens else 0.0,
            itl_s=_mean(last.itl_s - first.itl_s, tokens),
            ttft_s=_mean(last.ttft_s - first.ttft_s, answers),
            prompt_tokens=_mean(last.prompt_tokens - first.prompt_tokens, answers),
            output_tokens=_mean(last.generation_tokens - first.generation_tokens, answers),
        )


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None
