"""Requests that kill the engines they are sent to: who is blamed for a death, and what is refused after two."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

__all__ = ("FIRST_STEPS_TOKENS", "Admitted", "PoisonList", "blamed")

FIRST_STEPS_TOKENS = 2
_FIRST_STEPS_S = 10.0  # for a request of which no token is seen: it may wait in the engine, or answer in one piece
_DEATHS = 2
_STORM_S = 30.0
_REMEMBERED_S = 900.0
_MAX_REMEMBERED = 1000


class Admitted(NamedTuple):
    """A request at an engine when it died. tokens: generated there, as far as we saw; since_s: time there."""

    request: Hashable
    tokens: int
    since_s: float


def blamed(present: Iterable[Admitted]) -> Hashable | None:
    """Whose first steps the engine died in, if it was one request's alone; None where nobody can be told."""
    new = [a.request for a in present if a.tokens < FIRST_STEPS_TOKENS and (a.tokens or a.since_s < _FIRST_STEPS_S)]
    return new[0] if len(new) == 1 else None


class PoisonList:
    """Deaths by the digest of the request that was blamed for them. Forgets after a quarter of an hour.

    Two make poison; three, where engines also die without anybody to blame: then two may be chance.
    """

    __slots__ = ("_deaths", "_storm_s")

    def __init__(self) -> None:
        self._deaths: dict[Hashable, tuple[int, float]] = {}
        self._storm_s = -_STORM_S

    def nobody(self, now_s: float) -> None:
        """An engine died, and no request is to blame."""
        self._storm_s = now_s

    def blame(self, digest: Hashable, now_s: float) -> bool:
        """One more death by this request. Whether that makes it poison."""
        count = self._count(digest, now_s) + 1
        self._deaths.pop(digest, None)
        self._deaths[digest] = (count, now_s)
        while len(self._deaths) > _MAX_REMEMBERED:
            del self._deaths[next(iter(self._deaths))]
        return count >= self._enough(now_s)

    def forget(self, digest: Hashable) -> None:
        """It did no harm: what it was blamed for was chance."""
        self._deaths.pop(digest, None)

    def is_poison(self, digest: Hashable, now_s: float) -> bool:
        return self._count(digest, now_s) >= self._enough(now_s)

    def _enough(self, now_s: float) -> int:
        return _DEATHS + (now_s - self._storm_s < _STORM_S)

    def _count(self, digest: Hashable, now_s: float) -> int:
        count, at_s = self._deaths.get(digest, (0, 0.0))
        return count if now_s - at_s < _REMEMBERED_S else 0
