"""What gateways are told about their users: tenants, keys, where requests are sent, how they queue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = (
    "ANONYMOUS",
    "AdminCredential",
    "Alias",
    "CorsPolicy",
    "KeyRecord",
    "Policy",
    "QueuePolicy",
    "ResumePolicy",
    "RouteRule",
    "TenantPolicy",
    "WeightedPool",
)

ANONYMOUS = "anonymous"
"""The tenant of every request where no keys are asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPolicy:
    """One tenant. None is no limit.

    weight: share of busy engines relative to other tenants of the same class
    priority: class; 0 goes first, and what waits long is lifted to the class above
    requests_per_minute, tokens_per_minute: over a sliding minute; tokens are prompt and completion together
    tokens_per_day: per UTC day; concurrent_requests: waiting and running ones
    max_context_tokens: prompt and asked-for completion of one request
    models: names that may be asked for; None is all of them
    cache_group: tenants of one group share the engines' prefix caches; empty is a cache of its own
    tags: for routing rules
    """

    name: str
    weight: float = 1.0
    priority: int = 1
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrent_requests: int | None = None
    max_context_tokens: int | None = None
    models: tuple[str, ...] | None = None
    cache_group: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """An API key as it is stored: never the key itself.

    key_id: public name of the key, the middle of ``lb-<id>-<secret>``; sha256: hex digest of the whole key
    created_s, expires_s: Unix seconds; expires_s None: never
    """

    key_id: str
    tenant: str
    sha256: str = field(repr=False)
    created_s: float = 0.0
    expires_s: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminCredential:
    """Who may use the admin API. role: ``viewer`` reads, ``operator`` also drains and the like."""

    name: str
    role: str
    sha256: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedPool:
    """A model of the fleet and its share of an alias's requests."""

    model: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A name that clients use for one model, or for several with shares (a canary).

    sticky: what keeps its pool: ``tenant``, ``user`` (the body's field, else the tenant), ``header:NAME`` or
    ``request`` (nothing does)
    """

    name: str
    pools: tuple[WeightedPool, ...]
    sticky: str = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRule:
    """Sends matching requests to ``to``, a model or an alias. The first rule that matches counts; all parts must match.

    model: name that was asked for; ``*`` is any
    headers, fields: header (lower case) or top-level body field → value it must have; ``*`` is any value
    tenants, tags: one of them must be the tenant's; empty matches all
    min_prompt_tokens, max_prompt_tokens: bounds on the estimated prompt, both included
    min_context_tokens, max_context_tokens: the same for prompt and asked-for completion
    """

    to: str
    model: str = "*"
    tenants: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    min_prompt_tokens: int | None = None
    max_prompt_tokens: int | None = None
    min_context_tokens: int | None = None
    max_context_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """How requests wait for room.

    max_waiting: requests of one model in one gateway process; max_wait_s: longest predicted, and longest real, wait
    age_s: after each such time a waiting request counts as of the class above
    headroom_ratio: least part of an engine's slots that only tenants below their share may take
    """

    max_waiting: int = 2000
    max_wait_s: float = 60.0
    age_s: float = 10.0
    headroom_ratio: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePolicy:
    """How answers outlive the engines that give them.

    enabled: off leaves every stream to the engine that began it
    wait_s: longest wait for a replica, of a request whose engine died, where it names no deadline itself; 0 never waits
    whole_wait_s: the same where the answer is no stream: its client gets no sign of life meanwhile
    comment_s: a stream that waits gets a comment so often, which keeps its connection alive
    capacity_ratio: part of a model's slots that answers may take at once while they are taken up again; others queue
    seeds: requests that name no seed get one, without which their answer cannot be continued exactly
    """

    enabled: bool = True
    wait_s: float = 300.0
    whole_wait_s: float = 50.0
    comment_s: float = 5.0
    capacity_ratio: float = 0.5
    seeds: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsPolicy:
    """Web pages that may call the gateway. origins: exact origins, or ``*``; empty turns it off."""

    origins: tuple[str, ...] = ()
    max_age_s: int = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything that a gateway may learn anew without a restart.

    auth: ``none`` | ``keys``
    fallbacks: model → models tried after it, in order, while nothing was answered
    num_gateways: nodes that share each tenant's limits where no Redis does: each keeps its part of them
    salt: secret from which each tenant's ``cache_salt`` is made
    """

    auth: str = "none"
    tenants: tuple[TenantPolicy, ...] = ()
    keys: tuple[KeyRecord, ...] = ()
    admins: tuple[AdminCredential, ...] = ()
    aliases: tuple[Alias, ...] = ()
    fallbacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rules: tuple[RouteRule, ...] = ()
    queue: QueuePolicy = QueuePolicy()
    resume: ResumePolicy = ResumePolicy()
    cors: CorsPolicy = CorsPolicy()
    num_gateways: int = 1
    salt: str = field(default="", repr=False)
