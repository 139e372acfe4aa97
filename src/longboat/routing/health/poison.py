"""Finds requests that kill their engines: which one to blame for a crash, and which to refuse."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

__all__ = ("FIRST_STEPS_TOKENS", "Admitted", "PoisonList", "request_to_blame")

FIRST_STEPS_TOKENS = 2
_FIRST_STEPS_S = 10.0  # for a request without a visible token: it may wait in the engine, or answer in one piece
_DEATHS = 2
_STORM_S = 30.0
_REMEMBERED_S = 900.0
_MAX_REMEMBERED = 1000


class Admitted(NamedTuple):
    """A request at an engine when the engine died."""

    request: Hashable
    tokens: int  # tokens of it that the gateway saw generated there
    since_s: float  # seconds since it was sent there


def request_to_blame(present: Iterable[Admitted]) -> Hashable | None:
    """Return the request to blame for a crash: the only one in its first steps there, else None."""
    new = [a.request for a in present if a.tokens < FIRST_STEPS_TOKENS and (a.tokens or a.since_s < _FIRST_STEPS_S)]
    return new[0] if len(new) == 1 else None


class PoisonList:
    """The deaths for which each request (by its digest) was blamed, kept for a quarter of an hour.

    Two deaths make a request poison, or three while engines also die with none to blame: two may then be chance.
    """

    __slots__ = ("_deaths", "_storm_s")

    def __init__(self) -> None:
        self._deaths: dict[Hashable, tuple[int, float]] = {}
        self._storm_s = -_STORM_S

    def blame_none(self, now_s: float) -> None:
        """Note that an engine died and no request is to blame."""
        self._storm_s = now_s

    def blame(self, digest: Hashable, now_s: float) -> bool:
        """Count one more death by this request, and return whether the request is now poison."""
        count = self._count(digest, now_s) + 1
        self._deaths.pop(digest, None)
        self._deaths[digest] = (count, now_s)
        while len(self._deaths) > _MAX_REMEMBERED:
            del self._deaths[next(iter(self._deaths))]
        return count >= self._enough(now_s)

    def forget(self, digest: Hashable) -> None:
        """Clear a request that did no harm: the deaths it was blamed for were chance."""
        self._deaths.pop(digest, None)

    def is_poison(self, digest: Hashable, now_s: float) -> bool:
        return self._count(digest, now_s) >= self._enough(now_s)

    def _enough(self, now_s: float) -> int:
        return _DEATHS + (now_s - self._storm_s < _STORM_S)

    def _count(self, digest: Hashable, now_s: float) -> int:
        count, at_s = self._deaths.get(digest, (0, 0.0))
        return count if now_s - at_s < _REMEMBERED_S else 0
