"""The state of what runs: replicas, their ranks and phases, and the endpoint table that gateways use."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

__all__ = (
    "START_PHASES",
    "Asleep",
    "Endpoint",
    "EndpointTable",
    "EngineActual",
    "Phase",
    "RankState",
    "ReplicaState",
    "ResumeLevel",
    "StartTimes",
)


class Phase(enum.StrEnum):
    """The phases of a replica's life. A ``suspect`` replica is ready, but a part of it is silent."""

    PLACING = "placing"
    FETCHING = "fetching"
    STARTING = "starting"
    LOADING = "loading"
    COMPILING = "compiling"
    WARMING = "warming"
    READY = "ready"
    SUSPECT = "suspect"
    DRAINING = "draining"
    FAILED = "failed"
    GONE = "gone"


START_PHASES = (Phase.STARTING, Phase.LOADING, Phase.COMPILING, Phase.WARMING)
"""The phases of an engine's start, first to last. An engine may warm up before it compiles."""


class ResumeLevel(enum.StrEnum):
    """The ways in which an engine can continue a stream that another engine began."""

    NONE = "none"  # the engine cannot continue it
    REPLAY = "replay"  # the engine repeats the tokens one step at a time
    CARRIED = "carried"  # the engine takes the tokens in one prefill

    @property
    def slower(self) -> ResumeLevel:
        """The way to ask for after an engine refused this one."""
        return ResumeLevel.REPLAY if self is ResumeLevel.CARRIED else ResumeLevel.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One node rank as its agent sees it."""

    node_rank: int
    node_id: str
    address: str
    hostname: str = ""
    pid: int | None = None  # None before the engine process exists and after it ended
    agent_pid: int | None = None
    log_path: str = ""
    started_by: str = ""  # "zygote" | "plain"
    rss_bytes: int = 0  # resident memory of all its processes; counts shared pages once per process
    # memory of one of its worker ranks, on its card or divided among processes; 0: not measured yet
    memory_bytes: int = 0
    cpu_s: float = 0.0
    gpu_ids: tuple[str, ...] = ()  # its accelerators, as CUDA_VISIBLE_DEVICES names them


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineActual:
    """Values that an engine measured since it became ready. None: the engine does not report the value."""

    kv_blocks: int | None = None  # blocks of its KV cache
    block_tokens: int | None = None  # tokens of a block
    rank_bytes: int = 0  # memory of its fullest worker rank; 0: not measured yet
    num_tokens: int = 0  # number of tokens behind the means; the first token of each response is left out
    concurrency: float = 0.0  # mean number of requests that were decoding, over these tokens
    itl_s: float | None = None  # mean inter-token latency
    ttft_s: float | None = None  # mean time to first token
    prompt_tokens: float | None = None  # mean per request
    output_tokens: float | None = None  # mean per request


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """One replica as its supervisor announces it.

    It has more than 12 fields because it is one line of ``longboat status``: a message, without behaviour.
    """

    model: str
    replica: str
    generation: int
    phase: Phase
    url: str = ""
    ranks: tuple[RankState, ...] = ()
    phase_s: Mapping[str, float] = field(default_factory=dict)  # seconds spent in each phase so far
    detail: str = ""
    shape: str = ""
    # covers everything that the replica was started with, to tell it from a replica of a changed model
    digest: str = ""
    supervisor_pid: int | None = None
    announced_at_s: float = 0.0
    resume: ResumeLevel = ResumeLevel.NONE  # level that the replica proved when it became ready
    resume_detail: str = ""  # why the level is not higher
    revision: str = ""  # covers what changes results: weights, tokenizer, template, engine version, flags
    actual: EngineActual | None = None  # what its engine measured; None before the first measurement
    adapters: Mapping[str, str] = field(default_factory=dict)  # adapter that it serves → revision of its contents
    adapters_held: tuple[str, ...] = ()  # those that its engine has in memory
    adapter_problems: Mapping[str, str] = field(default_factory=dict)  # adapter → why it cannot serve it

    @property
    def node(self) -> str:
        """Name, or address, of the node of rank 0; empty before it is known."""
        return next((rank.hostname or rank.address for rank in self.ranks if rank.node_rank == 0), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTimes:
    """How long the newest start of a model took on a node."""

    total_s: float  # from the order to the first token
    phase_s: Mapping[str, float]  # phase → its seconds; without the wait for a place


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An engine's API that requests for ``model`` may be sent to."""

    model: str
    replica: str
    generation: int
    url: str
    api_key: str = field(default="", repr=False)  # sent to the engine as ``Authorization: Bearer``; never logged
    ready: bool = True
    unwell: bool = False  # it is not ready because a relay judged so, not because it drains: it may come back
    capacity: int | None = None  # requests that may run there at once, from all users of this table; None: unknown
    # requests that the engine works on at once, where ``capacity`` is a part of them
    engine_capacity: int | None = None
    resume: ResumeLevel = ResumeLevel.NONE  # how it continues what another replica of the same ``revision`` began
    revision: str = ""
    beats: str = ""  # host:port where the gang's agent publishes heartbeats; empty: no heartbeats
    relay: str = ""  # host:port of the relay that judges its heartbeats for all gateways; empty: none does
    # the endpoint is being removed, and its streams move to another endpoint of the same ``revision`` now
    moving: bool = False
    adapters: Mapping[str, str] = field(default_factory=dict)  # adapter that it serves → revision of its contents
    adapters_held: int = 0  # adapters that its engine keeps in memory at most
    context_tokens: int = 0  # tokens that a request may have, prompt and response together; 0: the engine does not say

    @property
    def key(self) -> str:
        """A name that no other endpoint, past or present, has."""
        return f"{self.replica}/{self.generation}@{self.url}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asleep:
    """A model without a ready replica whose count went to zero: a request wakes it, unless it is paused."""

    paused: bool = False  # an operator paused it: no request wakes it
    cold_start_s: float | None = None  # measured seconds from the order to the first token; None: not measured yet
    ordered_s: float | None = None  # Unix seconds at which its first replica was ordered; None: it sleeps

    def ready_in_s(self, unix_s: float) -> float | None:
        """Return the seconds until a replica should be ready, if a request wakes the model now; None: not known."""
        if self.cold_start_s is None:
            return None
        began_s = unix_s if self.ordered_s is None else self.ordered_s
        return max(0.0, began_s + self.cold_start_s - unix_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointTable:
    """All endpoints at one moment. A gateway ignores a table with a lower version than the one it has."""

    version: int
    models: tuple[str, ...]  # every model of the fleet, also those without an endpoint right now
    endpoints: tuple[Endpoint, ...]
    partial: bool = False  # these models may have more endpoints, so this table removes none
    asleep: Mapping[str, Asleep] = field(default_factory=dict)  # model → how it sleeps; others are awake
    # model → figures of its number of replicas, by name, for the gateways' metrics
    scaling: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # host:port of each relay of heartbeats → its key
    relays: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def follows_load(self) -> bool:
        """Whether some model's number of replicas may follow its load."""
        return any(figures.get("maximum", 0) > figures.get("minimum", 0) for figures in self.scaling.values())

    def over(self, older: EndpointTable | None) -> EndpointTable:
        """Return this table completed with what ``older`` knew, where this one is partial."""
        if older is None or not self.partial:
            return self
        known = {(e.model, e.replica) for e in self.endpoints}
        kept = (e for e in older.endpoints if e.model in self.models and (e.model, e.replica) not in known)
        endpoints = (*self.endpoints, *kept)
        awake = {*self.asleep, *(endpoint.model for endpoint in endpoints if endpoint.ready)}
        slept = {model: how for model, how in older.asleep.items() if model in self.models and model not in awake}
        return replace(
            self,
            endpoints=endpoints,
            asleep={**slept, **self.asleep},
            scaling=self.scaling or older.scaling,
            relays={**older.relays, **self.relays},
        )
