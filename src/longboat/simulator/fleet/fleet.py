"""The fleet to simulate: replicas, gateways, and what happens to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from longboat.core.policy import QueuePolicy
from longboat.simulator.engine.limits import EngineLimits
from longboat.simulator.engine.step_time import StepTime

__all__ = ("Fleet", "FleetEvent", "Objectives", "Replica", "even_fleet")


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One replica: an engine on its hardware."""

    key: str
    time: StepTime
    limits: EngineLimits
    slowness: float = 1.0  # its steps take the seconds of ``time`` times this
    joins_s: float = 0.0  # when it is ready; 0: from the beginning
    jitter_s: tuple[float, ...] = ()  # seconds of which each step takes one more, drawn by chance; empty: none
    host: str = ""  # machine whose processors it shares with all replicas that name the same; empty: with none


@dataclass(frozen=True, kw_only=True)
class FleetEvent:
    """Something that happens to a replica.

    fail: it dies with all that it has; it comes back where another event says so
    join: it is ready, with an empty cache
    clear: it evicts all that no request uses
    slow: its steps take ``slowness`` times the seconds of its time model from now on
    """

    at_s: float
    key: str
    kind: Literal["fail", "join", "clear", "slow"]
    slowness: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Objectives:
    """What a request must keep to count as good."""

    ttft_s: float = 2.0
    itl_s: float = 0.1  # mean over its tokens


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The replicas of one model, and the gateways in front of them."""

    replicas: tuple[Replica, ...]
    gateways: int = 1  # which share nothing; each gets its part of the requests
    slots: int | None = None  # requests that all gateways together may have at a replica; None: no limit
    queue: QueuePolicy = field(default_factory=QueuePolicy)
    network_s: float = 0.0005  # from a gateway to an engine, and the same back
    received_token_s: float = 0.0  # more on the way there for each prompt token, cached or not: it is parsed and hashed
    received_jitter_s: tuple[float, ...] = ()  # seconds of which a request takes one more there, by chance; empty: none
    crowding: float = 0.0  # part of a step's time that each other engine on the host adds while it computes
    kv_delay_s: float = 0.1  # from a change in an engine's cache until gateways know it; below 0: they never do
    report_s: float = 1.0  # between two reports of an engine; 0: it makes none
    notice_s: float = 0.1  # from a replica's death until gateways know it
    reports_cached: bool = True  # whether responses say how many tokens of the prompt were cached
    events: tuple[FleetEvent, ...] = ()
    objectives: Objectives = field(default_factory=Objectives)


def even_fleet(count: int, time: StepTime, limits: EngineLimits) -> tuple[Replica, ...]:
    """Return ``count`` equal replicas."""
    return tuple(Replica(key=f"replica-{at}", time=time, limits=limits) for at in range(count))
