"""Decides when an endpoint that failed is avoided, and when one request may try it again."""

from __future__ import annotations

__all__ = ("Breaker",)


class Breaker:
    """Circuit breaker of one endpoint: a failure opens it for ``first_s``, and each failed trial doubles that time.

    Half open, it lets one trial through; it avoids the endpoint until that trial is judged or ``first_s`` have passed.
    Failures of requests that were sent before it opened change nothing: a hundred streams lost together fail once.
    Times are those of one steady clock, in seconds.
    """

    __slots__ = ("_first_s", "_longest_s", "_num_failures", "_on_trial", "_until_s", "closed")

    def __init__(self, *, first_s: float = 1.0, longest_s: float = 8.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._num_failures = 0
        self._on_trial = False
        self._until_s = 0.0
        self.closed = True  # the endpoint is trusted without reserve; read only

    def avoids(self, now_s: float) -> bool:
        """Return whether requests should go elsewhere, as long as another endpoint exists."""
        return self._num_failures > 0 and now_s < self._until_s

    def used(self, now_s: float) -> None:
        """Note that a request is sent to the endpoint: where the breaker is half open, this is its trial."""
        if self._num_failures and now_s >= self._until_s:
            self._on_trial = True
            self._until_s = now_s + self._first_s

    def failed(self, now_s: float) -> None:
        """Note that the endpoint could not be reached, broke off, or failed by itself."""
        if self.avoids(now_s) and not self._on_trial:
            return
        self._on_trial = False
        open_s = min(self._first_s * 2.0 ** min(self._num_failures, 30), self._longest_s)
        self._num_failures += 1
        self.closed = False
        self._until_s = now_s + open_s

    def succeeded(self) -> None:
        """Note that the endpoint answered."""
        self._num_failures = 0
        self.closed = True
        self._on_trial = False
