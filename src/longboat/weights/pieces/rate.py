"""Progress of a fetch: how much is there, how fast it comes, and how long the rest takes."""

from __future__ import annotations

from collections import deque

import msgspec

from longboat.core.sizes import readable_size

__all__ = ("Progress", "RateMeter")

WINDOW_S = 5.0


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a fetch is."""

    source: str
    total_bytes: int
    have_bytes: int
    from_storage_bytes: int = 0  # of this fetch
    from_nodes_bytes: int = 0  # of this fetch, from other nodes
    bytes_per_s: float = 0.0  # over the last seconds
    note: str = ""  # what it waits for, where it waits

    @property
    def left_s(self) -> float | None:
        """Seconds until the rest is there; None while the rate is not known."""
        left = self.total_bytes - self.have_bytes
        return 0.0 if left <= 0 else left / self.bytes_per_s if self.bytes_per_s > 0 else None

    def __str__(self) -> str:
        """Return ``3.2GiB of 14GiB, 210MiB/s, 52 s left``."""
        parts = [f"{readable_size(self.have_bytes)} of {readable_size(self.total_bytes)}"]
        if self.bytes_per_s:
            parts.append(f"{readable_size(int(self.bytes_per_s))}/s")
        if self.left_s:
            parts.append(f"{self.left_s:.0f} s left")
        return ", ".join([*parts, self.note] if self.note else parts)


class RateMeter:
    """The rate of the last seconds. now_s: of a clock that never goes back."""

    def __init__(self, now_s: float) -> None:
        self._seen: deque[tuple[float, int]] = deque([(now_s, 0)])
        self._total = 0

    def add(self, num_bytes: int, now_s: float) -> None:
        """Count bytes that arrived."""
        self._total += num_bytes
        self._seen.append((now_s, self._total))

    def bytes_per_s(self, now_s: float) -> float:
        """Return the mean rate of the last seconds."""
        while len(self._seen) > 1 and self._seen[1][0] <= now_s - WINDOW_S:
            self._seen.popleft()
        first_s, first = self._seen[0]
        elapsed_s = now_s - max(first_s, now_s - WINDOW_S)
        return (self._total - first) / elapsed_s if elapsed_s > 0 else 0.0
