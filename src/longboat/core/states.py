"""What is running: replicas, their ranks and phases, and the endpoint table that gateways are given."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

__all__ = ("Endpoint", "EndpointTable", "EngineActual", "Phase", "RankState", "ReplicaState", "ResumeLevel")


class Phase(enum.StrEnum):
    """The life of a replica. ``Suspect`` is a ready replica of which a part is silent."""

    PLACING = "placing"
    STARTING = "starting"
    LOADING = "loading"
    WARMING = "warming"
    READY = "ready"
    SUSPECT = "suspect"
    DRAINING = "draining"
    FAILED = "failed"
    GONE = "gone"


class ResumeLevel(enum.StrEnum):
    """How an engine goes on with an answer that another one began.

    CARRIED: tokens are taken over in one prefill; REPLAY: they are forced again one step at a time; NONE: it cannot
    """

    NONE = "none"
    REPLAY = "replay"
    CARRIED = "carried"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One node rank as its agent sees it. pid is None before the engine process exists and after it ended.

    rss_bytes: counts shared pages once a process; memory_bytes: of one of its worker ranks, on its card or shared out
    among processes, 0: not looked at yet
    """

    node_rank: int
    node_id: str
    address: str
    hostname: str = ""
    pid: int | None = None
    agent_pid: int | None = None
    log_path: str = ""
    started_by: str = ""  # "zygote" | "plain"
    rss_bytes: int = 0
    memory_bytes: int = 0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineActual:
    """What an engine turned out to be and to do since it was ready. None: it does not say.

    kv_blocks, block_tokens: of its cache; rank_bytes: memory of its fullest worker rank, 0: not looked at yet
    num_tokens: that the means are of, the first ones of answers left out
    concurrency: mean number of requests that were decoding, over these tokens
    itl_s, ttft_s, prompt_tokens, output_tokens: means
    """

    kv_blocks: int | None = None
    block_tokens: int | None = None
    rank_bytes: int = 0
    num_tokens: int = 0
    concurrency: float = 0.0
    itl_s: float | None = None
    ttft_s: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """One replica as its supervisor announces it.

    digest: of everything the replica was started with, so that it can be told from one of a changed model
    resume: what it proved when it became ready; resume_detail: why no more than that
    revision: of what changes results: weights, tokenizer, template, engine version, flags
    phase_s: seconds spent in each phase so far
    actual: what its engine measured; None before it was asked
    """

    model: str
    replica: str
    generation: int
    phase: Phase
    url: str = ""
    ranks: tuple[RankState, ...] = ()
    phase_s: Mapping[str, float] = field(default_factory=dict)
    detail: str = ""
    shape: str = ""
    digest: str = ""
    supervisor_pid: int | None = None
    announced_at_s: float = 0.0
    resume: ResumeLevel = ResumeLevel.NONE
    resume_detail: str = ""
    revision: str = ""
    actual: EngineActual | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An engine's API that requests for ``model`` may be sent to.

    capacity: requests that may run there at once, of all that use this table; None: nobody knows
    engine_capacity: requests that the engine works on at once, where ``capacity`` is a part of them
    api_key: sent as ``Authorization: Bearer`` to the engine; never logged
    resume: how it goes on with what another replica of the same ``revision`` began
    beats: host:port where the gang's agent tells that it lives; empty: nowhere
    moving: it is taken out, and what still runs there is to go on now with another of the same ``revision``
    """

    model: str
    replica: str
    generation: int
    url: str
    api_key: str = field(default="", repr=False)
    ready: bool = True
    capacity: int | None = None
    engine_capacity: int | None = None
    resume: ResumeLevel = ResumeLevel.NONE
    revision: str = ""
    beats: str = ""
    moving: bool = False

    @property
    def key(self) -> str:
        """Names this endpoint among all that ever were."""
        return f"{self.replica}/{self.generation}@{self.url}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointTable:
    """All endpoints at one moment. A table with a lower version than the one in hand is ignored.

    models: every model the fleet serves, also those with no endpoint right now
    partial: there may be more endpoints of these models, so none is taken away for this table
    """

    version: int
    models: tuple[str, ...]
    endpoints: tuple[Endpoint, ...]
    partial: bool = False

    def over(self, older: EndpointTable | None) -> EndpointTable:
        """What holds now, where ``older`` held before."""
        if older is None or not self.partial:
            return self
        known = {(e.model, e.replica) for e in self.endpoints}
        kept = (e for e in older.endpoints if e.model in self.models and (e.model, e.replica) not in known)
        return replace(self, endpoints=(*self.endpoints, *kept))
