"""Learns from finished requests: tokens that a slot makes in a second, and how wrong the estimates are."""

from __future__ import annotations

from typing import Final

__all__ = ("EstimateBias", "Throughput")

_KEEP: Final = 0.98
"""What one more request leaves of everything learned before: about the last 50 requests count."""

_PRIOR_TOKENS: Final = 1000.0
_LEAST_S: Final = 1e-6


class EstimateBias:
    """Used tokens divided by estimated ones, over the last requests. Bounded, so that no mistake lasts."""

    __slots__ = ("_estimated", "_used", "value")

    def __init__(self, value: float = 1.0) -> None:
        self.value = value
        self._estimated = _PRIOR_TOKENS
        self._used = _PRIOR_TOKENS * value

    def learn(self, *, estimated_tokens: int, used_tokens: float) -> None:
        self._estimated = self._estimated * _KEEP + estimated_tokens
        self._used = self._used * _KEEP + used_tokens
        self.value = min(10.0, max(0.01, self._used / self._estimated))


class Throughput:
    """Throughput of a model's slots, from which waits are predicted."""

    __slots__ = ("_requests", "_slot_s", "_tokens")

    def __init__(self) -> None:
        self._tokens = 0.0
        self._slot_s = 0.0
        self._requests = 0.0

    def learn(self, *, used_tokens: float, busy_s: float) -> None:
        self._tokens = self._tokens * _KEEP + used_tokens
        self._slot_s = self._slot_s * _KEEP + max(busy_s, _LEAST_S)
        self._requests = self._requests * _KEEP + 1

    @property
    def known(self) -> bool:
        return self._tokens > 0

    @property
    def mean_tokens(self) -> float:
        """Mean tokens of one request. Only where ``known``."""
        return self._tokens / self._requests

    def seconds(self, tokens: float, slots: float) -> float:
        """Return how long ``slots`` slots take for ``tokens``. Only where ``known``."""
        return tokens * self._slot_s / self._tokens / slots
