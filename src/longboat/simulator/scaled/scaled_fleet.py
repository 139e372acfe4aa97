"""A fleet to scale, and what came of it."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from longboat.core.scaling import Decision, Objective
from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.engine.step_time import StepTime

__all__ = ("Moment", "ScaledFleet", "ScaledResult")


@dataclass(frozen=True, kw_only=True)
class ScaledFleet:
    """The replicas of one model, as they come and go."""

    time: StepTime
    limits: EngineLimits
    objective: Objective
    model: str = "model"
    initial: int = 1  # replicas that serve from the beginning
    cold_start_s: float = 30.0  # from the decision until a replica serves
    cold_start_spread: float = 0.1  # part by which single cold starts are shorter or longer
    tick_s: float = 1.0  # between two decisions
    begin_s: float = 1_800_000_000.0  # Unix seconds of the trace's first moment, as the scaler is given them
    seed: int = 0  # of the cold starts
    as_reported: bool = False  # whether the scaler sees what a gateway reports each second: the newest responses only


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The fleet at one time, for curves."""

    at_s: float  # since the trace began
    wanted: int
    ready: int
    starting: int
    draining: int
    waiting: int  # requests in the gateway
    running: int  # requests at engines
    arrived: int  # requests since the last moment


@dataclass(kw_only=True)
class ScaledResult:
    """What the requests of a run saw, and what the replicas cost."""

    requests: int = 0
    late: int = 0  # requests that missed the objective
    too_long: int = 0  # requests that no replica's cache can hold; they are in no other count
    unserved: int = 0  # requests that still waited when there had been no replica, nor one that starts, for 300 s
    replica_s: float = 0.0  # accelerator seconds in replicas: from the decision until the last request was gone
    starts: int = 0  # replicas that were asked for after the beginning
    span_s: float = 0.0
    moments: list[Moment] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)  # that changed the count
    ttft_s: array[float] = field(default_factory=lambda: array("d"))
    itl_s: array[float] = field(default_factory=lambda: array("d"))
    late_by_s: array[int] = field(default_factory=lambda: array("l"))  # second of arrival of each late request

    @property
    def kept_share(self) -> float:
        """Part of the requests that kept the objective."""
        came = self.requests + self.unserved
        return 1.0 - (self.late + self.unserved) / came if came else 1.0

    @property
    def starts_per_hour(self) -> float:
        return self.starts / self.span_s * 3600.0 if self.span_s else 0.0
