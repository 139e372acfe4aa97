"""Judges from heartbeats whether a gang still works: cut off, stopped, ended, or hanging. The clock is an argument."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

__all__ = (
    "CUT",
    "ENDED",
    "QUIT",
    "STOPPED",
    "UNHEARD",
    "Beat",
    "Health",
    "Judgement",
    "Life",
    "Liveness",
    "LivenessLimits",
    "RankBeat",
    "Silence",
)

_PAUSE_S = 0.5
"""A listener that last looked this long ago was not running itself: unread beats may be waiting for it."""

_SUSPENDED_S = 5.0
"""A listener that last judged this long ago may have been suspended together with the engine."""

QUIT, ENDED = "quit", "ended"
"""Causes of the judgements about a gang that ended because it was asked to, and about one that ended otherwise."""

CUT, STOPPED = "cut", "stopped"
"""Causes that lie outside an engine: no packet arrives, or a signal stopped a process."""

_REFUSED = "refused"

_CPU_STEP_S = 2.0
"""This much more CPU time in a gang counts as work. An idle engine that answers probes needs less in ``hang_s``."""


class Life(enum.StrEnum):
    """State of a rank's processes, as the kernel reports it."""

    RUNS = "R"
    STOPPED = "T"  # at least one process is stopped, by a signal or a debugger
    ENDED = "X"  # nothing of it is left, or it is being stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBeat:
    """One rank of a gang, as its agent saw it last."""

    node_rank: int
    life: Life
    # CPU time that its processes used so far, or waited for: on a busy machine work is slow, not hung
    cpu_s: float = 0.0
    silent_s: float = 0.0  # since the sender of the beat last heard from the rank's agent
    unreached_s: float = 0.0  # since the rank's node answered in any way
    # since a connection with another rank repeats data that is not acknowledged; 0: none does
    unacked_s: float = 0.0
    unacked_by: str = ""  # address of that rank
    on_request: bool = False  # it ended because it was asked to, by a signal or an order; no request is to blame


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A gang at one moment."""

    ranks: tuple[RankBeat, ...]
    steps: int | None = None  # steps of the engine since its start; None: not reported
    num_running: int | None = None  # running requests; None: not reported


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessLimits:
    """Times after which a gang is doubted or treated as lost."""

    unreached_s: float = 1.6  # without any answer from a node
    doubt_s: float = 1.0  # without a beat, though the node answers
    silent_s: float = math.inf  # without a beat, where listener and gang are on the same node
    unacked_s: float = 2.0  # without an acknowledgement on a connection between two ranks
    stopped_beats: int = 4  # consecutive beats that show a rank stopped
    hang_s: float = 30.0  # with requests running, but neither a step nor CPU time


class Health(enum.StrEnum):
    """Verdict about a gang. DOUBTFUL: prefer another one. SILENT: it gets nothing new, and its requests go on.

    LOST: its requests must move elsewhere.
    """

    ALIVE = "alive"
    DOUBTFUL = "doubtful"
    SILENT = "silent"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict with its reason."""

    health: Health
    cause: str = ""  # one word, for counting
    detail: str = ""  # text for people
    node_rank: int | None = None  # the rank that caused it, if a single one did

    @property
    def takes_nothing(self) -> bool:
        """Whether no new request may go there."""
        return self.health in (Health.SILENT, Health.LOST)

    @property
    def is_last_word(self) -> bool:
        """Whether it says how the gang ended, or no later heartbeat can: its sender is gone, or out of reach."""
        return self.cause in (QUIT, ENDED, _REFUSED) or (self.cause == CUT and self.node_rank is None)


_ALIVE = Judgement(health=Health.ALIVE)
UNHEARD = Judgement(health=Health.ALIVE, cause="unheard", detail="no heartbeat yet")
"""Before the first beat. It says nothing against a gang, and it does not clear what another listener found."""


class Silence:
    """The seconds since something was heard, without those in which the listener itself did not run.

    Call ``seconds`` several times a second: a longer pause is the listener's own.
    """

    __slots__ = ("_heard_s", "_looked_s")

    def __init__(self, now_s: float) -> None:
        self._heard_s = self._looked_s = now_s

    def hear(self, now_s: float) -> None:
        self._heard_s = max(self._heard_s, now_s)

    def seconds(self, now_s: float) -> float:
        pause_s = now_s - self._looked_s
        if pause_s > _PAUSE_S:
            self._heard_s = min(now_s, self._heard_s + pause_s)
        self._looked_s = now_s
        return max(0.0, now_s - self._heard_s)


class Liveness:
    """The record of one gang's beats. A gang counts as alive before its first one: the path to it may be blocked."""

    __slots__ = (
        "_beat",
        "_cpu_mark_s",
        "_hung_s",
        "_is_refused",
        "_judged_s",
        "_limits",
        "_progress_s",
        "_reached",
        "_silence",
        "_steps",
        "_stops",
    )

    def __init__(self, limits: LivenessLimits, now_s: float) -> None:
        self._limits = limits
        self._silence = Silence(now_s)
        self._reached = Silence(now_s)
        self._beat: Beat | None = None
        self._stops: dict[int, int] = {}  # rank → beats in a row that show it stopped
        self._steps: int | None = None
        self._cpu_mark_s = 0.0
        self._progress_s = now_s
        self._hung_s = 0.0
        self._judged_s = now_s
        self._is_refused = False

    @property
    def beat(self) -> Beat | None:
        """The newest beat; None before the first one."""
        return self._beat

    def hear(self, beat: Beat, now_s: float) -> None:
        """Take in a beat."""
        if self._beat is None:
            self._progress_s = now_s
        self._beat, self._is_refused = beat, False
        self._silence.hear(now_s)
        self._reached.hear(now_s)
        self._stops = {r.node_rank: self._stops.get(r.node_rank, 0) + 1 for r in beat.ranks if r.life is Life.STOPPED}
        self._follow_progress(beat, now_s)

    def reach(self, now_s: float, *, is_refused: bool = False) -> None:
        """Note that the gang's node answered: the path to it works.

        is_refused: by refusing a connection, as it does when the sender of the gang's heartbeats is gone
        """
        self._reached.hear(now_s)
        self._is_refused = is_refused

    def judge(self, now_s: float) -> Judgement:
        """Judge the gang now. Call several times a second."""
        silent_s, unreached_s = self._silence.seconds(now_s), self._reached.seconds(now_s)
        self._excuse(now_s)
        if self._beat is None:
            return UNHEARD
        if unreached_s > self._limits.unreached_s:
            return _lost(CUT, f"its node has not answered for {unreached_s:.1f} s")
        found = self._judge_ranks(self._beat)
        if found is not None:
            return found
        if self._hung_s > self._limits.hang_s:
            return _lost(
                "hung", f"requests are running, but it made no step and used no CPU time for {self._hung_s:.0f} s"
            )
        if silent_s > self._limits.silent_s:
            return Judgement(health=Health.SILENT, cause="silent", detail=f"no heartbeat for {silent_s:.1f} s")
        if self._is_refused:
            return Judgement(health=Health.DOUBTFUL, cause=_REFUSED, detail="the sender of its heartbeats is gone")
        if silent_s > self._limits.doubt_s:
            return Judgement(health=Health.DOUBTFUL, cause="silent", detail=f"no heartbeat for {silent_s:.1f} s")
        return _ALIVE

    def _excuse(self, now_s: float) -> None:
        """Do not count a long time without a judgement as a hang: the whole machine may have stood still."""
        pause_s, self._judged_s = now_s - self._judged_s, now_s
        if pause_s > _SUSPENDED_S:
            self._progress_s = min(now_s, self._progress_s + pause_s)
            self._hung_s = max(0.0, self._hung_s - pause_s)

    def _judge_ranks(self, beat: Beat) -> Judgement | None:
        ended = [rank for rank in beat.ranks if rank.life is Life.ENDED]
        if ended:
            first = min(ended, key=lambda rank: rank.on_request)  # ranks are stopped because another one crashed
            if first.on_request:
                return _lost(QUIT, "its process was asked to end", first.node_rank)
            return _lost(ENDED, "its process has ended", first.node_rank)
        for rank in beat.ranks:
            number = rank.node_rank
            if self._stops.get(number, 0) >= self._limits.stopped_beats:
                return _lost(STOPPED, "one of its processes is stopped", number)
            if rank.unreached_s > self._limits.unreached_s:
                return _lost(CUT, f"its node has not answered for {rank.unreached_s:.1f} s", number)
            if rank.unacked_s > self._limits.unacked_s:
                what = f"its connection with {rank.unacked_by} has had no acknowledgement for {rank.unacked_s:.1f} s"
                return _lost(CUT, what, number)
        return None

    def _follow_progress(self, beat: Beat, now_s: float) -> None:
        """Count a step, or CPU time, as work: a long prefill makes no step, and a waiting rank uses no CPU."""
        cpu_s = sum(rank.cpu_s for rank in beat.ranks)
        worked = cpu_s - self._cpu_mark_s >= _CPU_STEP_S or cpu_s < self._cpu_mark_s
        unknown = not beat.num_running or any(rank.silent_s > self._limits.doubt_s for rank in beat.ranks)
        if worked or unknown or beat.steps != self._steps:
            self._progress_s, self._cpu_mark_s, self._steps = now_s, cpu_s, beat.steps
        self._hung_s = now_s - self._progress_s


def _lost(cause: str, detail: str, node_rank: int | None = None) -> Judgement:
    return Judgement(health=Health.LOST, cause=cause, detail=detail, node_rank=node_rank)
