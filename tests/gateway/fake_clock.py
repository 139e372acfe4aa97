"""A clock that tests turn by hand."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ("FakeClock",)


@dataclass
class FakeClock:
    """Fits ``longboat.core.clock.Clock``; both of its times go on together."""

    now_s: float = 1_700_006_400.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s
