"""How many replicas a model has: what the fleet file asks for, what is observed, and what is decided.

Times are Unix seconds, durations are seconds, latencies milliseconds. ``dataclasses.asdict`` makes JSON of each class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = (
    "Decision",
    "FixedTarget",
    "Latency",
    "ModelObservation",
    "Objective",
    "OngoingTarget",
    "Quantiles",
    "ReplicaSpeed",
    "ScaledModel",
    "ScalingTarget",
    "ScheduleEntry",
    "SloTarget",
    "StartingReplica",
    "quantiles_among",
    "some_lengths",
)

MOST_LENGTHS = 32
"""Requests at most whose lengths one observation has."""


@dataclass(frozen=True, kw_only=True)
class FixedTarget:
    """A count that no load changes; only the schedule does. The count is the model's ``min_replicas``."""


@dataclass(frozen=True, kw_only=True)
class OngoingTarget:
    """A number of requests for each replica, with the delays and factors of Ray Serve's autoscaler."""

    target_ongoing_requests: float  # running and waiting requests for each replica
    upscale_delay_s: float = 30.0  # more replicas must be wanted for this long without a break
    downscale_delay_s: float = 600.0  # the same for fewer
    downscale_to_zero_delay_s: float | None = None  # the same for none; None: as downscale_delay_s
    look_back_period_s: float = 30.0  # requests are the mean over this period
    upscaling_factor: float = 1.0  # part of the wanted change that is made
    downscaling_factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What requests of one priority class must keep. None: no limit."""

    priority: int | None = None  # the class, 0 goes first; None: every class without an objective of its own
    ttft_ms: float | None = None  # to the first token, with the wait in the gateway
    itl_ms: float | None = None  # mean time between the tokens of a response
    percentile: float = 99.0  # percentage of requests that must keep both

    def missed_by(self, ttft_ms: float, itl_ms: float) -> bool:
        """Return whether a request with these times is late."""
        too_slow = self.ttft_ms is not None and ttft_ms > self.ttft_ms
        return too_slow or (self.itl_ms is not None and itl_ms > self.itl_ms)


@dataclass(frozen=True, kw_only=True)
class SloTarget:
    """As many replicas as keep the objectives."""

    objectives: tuple[Objective, ...]
    upscale_delay_s: float = 0.0  # more replicas must be wanted for this long
    downscale_delay_s: float | None = None  # fewer replicas must suffice for this long; None: from the cold start
    downscale_to_zero_delay_s: float = 600.0  # without any request, where the model may have no replica

    def objective(self, priority: int) -> Objective | None:
        """Return the objective of a priority class; None where neither it nor every class has one."""
        by_class = {one.priority: one for one in self.objectives}
        return by_class.get(priority) or by_class.get(None)


ScalingTarget = FixedTarget | OngoingTarget | SloTarget


@dataclass(frozen=True, kw_only=True)
class ScheduleEntry:
    """Bounds that hold during certain times. They begin where ``cron`` says, and end by ``for_s`` or ``until``."""

    cron: str  # five fields, as cron(5) has them
    for_s: float | None = None
    until: str | None = None  # cron syntax; the first such moment after the beginning ends it
    timezone: str = "UTC"  # a name of the IANA database: Europe/Berlin
    min_replicas: int | None = None  # at least this many; None: as without the entry
    replicas: int | None = None  # exactly this many, whatever the load


@dataclass(frozen=True, kw_only=True)
class ReplicaSpeed:
    """How fast one replica is, as the planner predicts it: the terms of an engine's step, and what fits at once."""

    base_s: float  # of each step
    prompt_token_s: float  # of each prompt token that is computed
    prompt_base_s: float = 0.0  # more of each step that computes prompts
    prompt_pair_s: float = 0.0  # of each pair of a computed prompt token and a token before it
    sequence_s: float = 0.0  # of each sequence that decodes
    kv_token_s: float = 0.0  # of each token in the KV cache that a decoding sequence reads
    max_sequences: int = 256  # that decode at once
    kv_tokens: int = 100_000  # tokens that the KV cache holds
    step_tokens: int = 8192  # prompt tokens that one step computes at most


@dataclass(frozen=True, kw_only=True)
class ScaledModel:
    """One model of the fleet, as its replicas are counted."""

    name: str
    target: ScalingTarget
    min_replicas: int = 1
    max_replicas: int = 1
    initial_replicas: int = 1  # when the fleet comes up
    schedule: tuple[ScheduleEntry, ...] = ()
    priority: int = 1  # whose SLO goes first where accelerators are scarce; 0 is first
    weight: float = 1.0  # share of what is scarce, among models of one priority
    takes: Mapping[str, float] = field(default_factory=dict)  # accelerators of one replica, by their kind
    cold_start_s: float = 60.0  # from the decision until a replica serves, where none was measured yet
    speed: ReplicaSpeed | None = None  # None: not predicted; it is learned from what is observed


@dataclass(frozen=True, kw_only=True)
class Quantiles:
    """Four quantiles of a latency."""

    p50: float
    p90: float
    p95: float
    p99: float


def some_lengths(known: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Return at most ``MOST_LENGTHS`` of these lengths, drawn evenly."""
    return tuple(known[:: max(1, -(-len(known) // MOST_LENGTHS))])


def quantiles_among(values: Sequence[float]) -> Quantiles | None:
    """Return the quantiles of single values; None where there are none."""
    if not values:
        return None
    known = sorted(values)
    p50, p90, p95, p99 = (known[min(len(known) - 1, int(share * len(known)))] for share in (0.5, 0.9, 0.95, 0.99))
    return Quantiles(p50=p50, p90=p90, p95=p95, p99=p99)


@dataclass(frozen=True, kw_only=True)
class Latency:
    """Latencies of the requests of one priority class that ended since the last observation."""

    priority: int
    ended: int  # number of these requests; 0 where tokens passed in a live fleet and no response ended
    ttft_ms: Quantiles | None = None  # None: none of them had a first token
    itl_ms: Quantiles | None = None  # of responses' means, or of single times where ``itl_mean_ms`` is given
    # mean of single times, most of which have no prompt beside them: their median says less. Of older gateways
    itl_mean_ms: float | None = None
    late: int | None = None  # requests among them that missed the class's objective; None: not counted
    judged: int | None = None  # requests of which it is known whether they were late; None: all that ended


@dataclass(frozen=True, kw_only=True)
class StartingReplica:
    """A replica that is not ready yet."""

    age_s: float  # since it was asked for


@dataclass(frozen=True, kw_only=True)
class ModelObservation:
    """What happened at one model since the last observation, over all gateways, and how it stands now."""

    model: str
    seconds: float = 1.0  # since the last observation
    arrived: int = 0  # requests that came, those that were refused too
    prompt_tokens: int = 0  # of the requests that ended
    cached_tokens: int = 0  # of these, found in a prefix cache
    output_tokens: int = 0  # that were generated for the requests that ended
    ended: int = 0  # requests that ended, without those that the gateway refused
    # prompt and output tokens of some requests that ended, 32 at most; the prompt without its cached part. Empty
    # where gateways reported sums only, as older ones do
    lengths: tuple[tuple[int, int], ...] = ()
    running: int = 0  # requests at engines
    waiting: int = 0  # requests in the gateways, those of a model without replicas too
    ready: int = 0  # replicas that serve
    starting: tuple[StartingReplica, ...] = ()
    draining: int = 0  # replicas that finish their requests and take no more; their accelerators are not free yet
    latencies: tuple[Latency, ...] = ()  # one for each class with ended requests
    cold_start_s: float | None = None  # the newest that was measured; None: none was
    paused: bool = False  # by a person: no replica, whatever comes
    asked: int | None = None  # count that a person asked for; None: the target decides


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The number of replicas that a model should have from now on, and why."""

    at_s: float
    model: str
    replicas: int  # wanted: ready and starting ones together
    before: int  # wanted until now
    reason: str  # one sentence for people
    terms: Mapping[str, float] = field(default_factory=dict)  # the numbers behind the reason, by name
    short: int = 0  # replicas that were wanted besides, and that there is no room for
