"""When the entries of a schedule hold, in the time zones that they name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim

from longboat.core.scaling import ScheduleEntry

__all__ = ("Schedule", "Scheduled")


@dataclass(frozen=True, kw_only=True)
class Scheduled:
    """What the schedule asks for at some moment. None: it leaves that open."""

    min_replicas: int | None = None
    replicas: int | None = None
    entry: ScheduleEntry | None = None  # that decided; None: no entry holds


class Schedule:
    """The entries of one model. Of several that hold, the highest count wins, and an exact one before a minimum."""

    def __init__(self, entries: Sequence[ScheduleEntry]) -> None:
        self._periods = [_Periods(entry) for entry in entries]

    def at(self, now_s: float, lead_s: float = 0.0) -> Scheduled:
        """Return what holds now, or begins within ``lead_s``: replicas that take so long to start are asked for then.

        lead_s: an exact count is a minimum until its time, so that one below the present count waits.
        """
        now = [periods.entry for periods in self._periods if periods.holds(now_s, 0.0)]
        soon = [periods.entry for periods in self._periods if periods.holds(now_s, lead_s)]
        exact = max((e for e in now if e.replicas is not None), key=_count, default=None)
        if exact is not None:
            return Scheduled(replicas=exact.replicas, min_replicas=exact.replicas, entry=exact)
        least = max(soon, key=_count, default=None)
        return Scheduled(min_replicas=None if least is None else _count(least), entry=least)


def _count(entry: ScheduleEntry) -> int:
    return entry.replicas if entry.replicas is not None else entry.min_replicas or 0


class _Periods:
    """The periods of one entry; the one that is next or under way is kept."""

    def __init__(self, entry: ScheduleEntry) -> None:
        self.entry = entry
        self._zone = ZoneInfo(entry.timezone)
        self._from_s = self._begin_s = self._end_s = float("inf")

    def holds(self, now_s: float, lead_s: float) -> bool:
        """Return whether the entry holds now, or begins within ``lead_s``."""
        if not self._from_s <= now_s < self._end_s:
            self._find(now_s)
        return self._begin_s <= now_s + lead_s

    def _find(self, now_s: float) -> None:
        """Find the first period that ends after ``now_s``."""
        self._from_s, self._begin_s, self._end_s = now_s, float("inf"), float("inf")
        for begin_s in self._beginnings(now_s):
            if (end_s := self._end(begin_s)) > now_s:
                self._begin_s, self._end_s = begin_s, end_s
                return

    def _beginnings(self, now_s: float) -> Iterator[float]:
        """Yield the newest beginning until now, and those that follow.

        Moments are compared by their seconds: two wall times of the hour that a change of the clock repeats are equal.
        """
        newest_first = CronSim(self.entry.cron, self._moment(now_s + 60.0), reverse=True)
        newest_s = next((begin.timestamp() for begin in newest_first if begin.timestamp() <= now_s), None)
        if newest_s is not None:
            yield newest_s
        yield from (later.timestamp() for later in CronSim(self.entry.cron, self._moment(now_s)))

    def _moment(self, time_s: float) -> datetime:
        return datetime.fromtimestamp(time_s, self._zone)

    def _end(self, begin_s: float) -> float:
        if self.entry.for_s is not None:
            return begin_s + self.entry.for_s
        begin = self._moment(begin_s)
        return next((end.timestamp() for end in CronSim(self.entry.until or "", begin)), float("inf"))
