"""Judges from heartbeats whether a gang still works: cut off, stopped, ended, or hanging. The clock is an argument."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ("Beat", "Health", "Judgement", "Life", "Liveness", "LivenessLimits", "RankBeat", "Silence")

_PAUSE_S = 0.5
"""Who looked last so long ago was not running itself: what came meanwhile may not be read yet."""

_CPU_STEP_S = 2.0
"""So much more CPU time in a gang is work. An idle engine that is asked how it is needs less in ``hang_s``."""


class Life(enum.StrEnum):
    """What the kernel says of a rank's processes. STOPPED: one of them at least, by a signal or a debugger."""

    RUNS = "R"
    STOPPED = "T"
    ENDED = "X"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBeat:
    """One rank of a gang, as its agent saw it last.

    cpu_s: CPU time that its processes used so far, or were seen to wait for: on a busy machine work is slow, not hung
    silent_s: since its agent was heard by who tells this; unreached_s: since its node answered in any way
    """

    node_rank: int
    life: Life
    cpu_s: float = 0.0
    silent_s: float = 0.0
    unreached_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A gang at one moment. steps: of the engine, since its start; num_running: requests; None: it does not tell."""

    ranks: tuple[RankBeat, ...]
    steps: int | None = None
    num_running: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LivenessLimits:
    """How long is too long.

    unreached_s: without any answer from a node; doubt_s: without a beat, though its node answers
    stopped_beats: beats in a row that show a rank stopped
    hang_s: with requests running, neither a step nor CPU time
    """

    unreached_s: float = 1.6
    doubt_s: float = 1.0
    stopped_beats: int = 4
    hang_s: float = 30.0


class Health(enum.StrEnum):
    """DOUBTFUL: choose another where there is one. LOST: what runs there must go elsewhere."""

    ALIVE = "alive"
    DOUBTFUL = "doubtful"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """cause: one word, for counting; detail: for people; node_rank: of whom, where it is one rank's."""

    health: Health
    cause: str = ""
    detail: str = ""
    node_rank: int | None = None


_ALIVE = Judgement(health=Health.ALIVE)


class Silence:
    """Seconds since something was heard, without those in which the listener itself did not run.

    ``seconds`` is to be asked several times a second: a longer pause is the listener's own.
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
    """What was heard of one gang. Before its first beat it is taken for alive: the way to its door may be barred."""

    __slots__ = (
        "_beat",
        "_cpu_mark_s",
        "_hung_s",
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

    @property
    def beat(self) -> Beat | None:
        """The newest; None: none came yet."""
        return self._beat

    def hear(self, beat: Beat, now_s: float) -> None:
        """A beat came."""
        if self._beat is None:
            self._progress_s = now_s
        self._beat = beat
        self._silence.hear(now_s)
        self._reached.hear(now_s)
        self._stops = {r.node_rank: self._stops.get(r.node_rank, 0) + 1 for r in beat.ranks if r.life is Life.STOPPED}
        self._follow_progress(beat, now_s)

    def reach(self, now_s: float) -> None:
        """Its node answered, if only by refusing: the way there is whole."""
        self._reached.hear(now_s)

    def judge(self, now_s: float) -> Judgement:
        """To be asked several times a second."""
        silent_s, unreached_s = self._silence.seconds(now_s), self._reached.seconds(now_s)
        if self._beat is None:
            return _ALIVE
        if unreached_s > self._limits.unreached_s:
            return _lost("cut", f"nothing comes from its node for {unreached_s:.1f} s")
        found = self._judge_ranks(self._beat)
        if found is not None:
            return found
        if self._hung_s > self._limits.hang_s:
            return _lost("hung", f"requests run, but no step was made and no CPU time used for {self._hung_s:.0f} s")
        if silent_s > self._limits.doubt_s:
            return Judgement(health=Health.DOUBTFUL, cause="silent", detail=f"no heartbeat for {silent_s:.1f} s")
        return _ALIVE

    def _judge_ranks(self, beat: Beat) -> Judgement | None:
        for rank in beat.ranks:
            number = rank.node_rank
            if rank.life is Life.ENDED:
                return _lost("ended", "its process has ended", number)
            if self._stops.get(number, 0) >= self._limits.stopped_beats:
                return _lost("stopped", "a process of it is stopped", number)
            if rank.unreached_s > self._limits.unreached_s:
                return _lost("cut", f"nothing comes from its node for {rank.unreached_s:.1f} s", number)
        return None

    def _follow_progress(self, beat: Beat, now_s: float) -> None:
        """Work is a step, or CPU time of any rank: a long prefill makes no step, a rank that waits needs no CPU."""
        cpu_s = sum(rank.cpu_s for rank in beat.ranks)
        worked = cpu_s - self._cpu_mark_s >= _CPU_STEP_S or cpu_s < self._cpu_mark_s
        unknown = not beat.num_running or any(rank.silent_s > self._limits.doubt_s for rank in beat.ranks)
        if worked or unknown or beat.steps != self._steps:
            self._progress_s, self._cpu_mark_s, self._steps = now_s, cpu_s, beat.steps
        self._hung_s = now_s - self._progress_s


def _lost(cause: str, detail: str, node_rank: int | None = None) -> Judgement:
    return Judgement(health=Health.LOST, cause=cause, detail=detail, node_rank=node_rank)
