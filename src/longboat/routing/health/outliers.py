"""Finds the replica that is so much slower than its siblings that new requests should go elsewhere."""

from __future__ import annotations

import statistics
from collections.abc import Collection

__all__ = ("Outliers",)

_SLOWER = 3.0
_MIN_GAP_S = 0.005  # a replica that is slower by less than this per token does no harm
_MIN_TOKENS = 40.0
_HALF_LIFE_S = 10.0
_EJECT_S = 30.0
_MAX_EJECT_S = 300.0


class _Sample:
    """The recent pace of one replica, and its ejections."""

    __slots__ = ("at_s", "ejections", "seconds", "tokens", "until_s")

    def __init__(self) -> None:
        self.at_s = self.seconds = self.tokens = self.until_s = 0.0
        self.ejections = 0

    def fade(self, now_s: float) -> None:
        kept = 0.5 ** (max(0.0, now_s - self.at_s) / _HALF_LIFE_S)
        self.seconds *= kept
        self.tokens *= kept
        self.at_s = now_s

    @property
    def pace_s(self) -> float:
        return self.seconds / self.tokens

    def eject(self, now_s: float) -> None:
        away_s = min(_EJECT_S * 2.0**self.ejections, _MAX_EJECT_S)
        self.until_s = now_s + away_s
        self.ejections += away_s < _MAX_EJECT_S  # no further: a power of it is taken
        self.seconds = self.tokens = 0.0


class Outliers:
    """The slow replicas of a model, by a comparison of recent seconds per token with the median of the other replicas.

    A replica that was ejected comes back on trial after 30 s; each time it is found slow again the pause doubles. At
    least half of the replicas always stay. Times are those of one steady clock, in seconds.
    """

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: dict[str, _Sample] = {}

    def observe(self, key: str, *, tokens: int, seconds: float, now_s: float) -> None:
        """Note that a stream of this replica got ``tokens`` in ``seconds``."""
        sample = self._samples.setdefault(key, _Sample())
        sample.fade(now_s)
        sample.tokens += tokens
        sample.seconds += seconds

    def ejected(self, keys: Collection[str], now_s: float) -> frozenset[str]:
        """Return the replicas that should get no new requests.

        keys: the replicas that could get requests; all others are forgotten
        """
        samples = self._samples = {key: self._samples[key] for key in keys if key in self._samples}
        aside = {key for key, sample in samples.items() if now_s < sample.until_s}
        known = {key: s for key, s in samples.items() if key not in aside and s.tokens >= _MIN_TOKENS}
        room = len(keys) // 2 - len(aside)
        for key in sorted(known, key=lambda k: known[k].pace_s, reverse=True)[: max(0, room)]:
            if not _is_slow(key, known):
                break
            known.pop(key).eject(now_s)
            aside.add(key)
        for sample in known.values():
            if now_s > sample.until_s + _MAX_EJECT_S:
                sample.ejections = 0
        return frozenset(aside) if len(aside) < len(keys) else frozenset()


def _is_slow(key: str, known: dict[str, _Sample]) -> bool:
    others = [sample.pace_s for other, sample in known.items() if other != key]
    if not others:
        return False
    usual_s = statistics.median(others)
    pace_s = known[key].pace_s
    return pace_s > _SLOWER * usual_s and pace_s - usual_s > _MIN_GAP_S
