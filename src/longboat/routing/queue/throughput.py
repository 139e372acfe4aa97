"""What finished requests teach: tokens that a slot does in a second, and how far estimates are from the truth."""

from __future__ import annotations

__all__ = ("Pace", "Ratio")

_KEEP = 0.98
"""Of all that was learned, what is left after one more request: the last 50 or so count."""

_PRIOR_TOKENS = 1000.0
_LEAST_S = 1e-6


class Ratio:
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


class Pace:
    """Speed of a model, per slot: waits are predicted with it. ``mean_tokens`` is of one request."""

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
        return self._tokens / self._requests

    def seconds(self, tokens: float, slots: float) -> float:
        """How long ``slots`` slots take for ``tokens``. Only where ``known``."""
        return tokens * self._slot_s / self._tokens / slots
