"""The policy that gateways follow: tenants, keys, where requests are sent, how they queue."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from longboat.core.external import ExternalModel, Overflow, Price
from longboat.core.media import MediaRules
from longboat.core.sign_in import SignIn
from longboat.core.tasks import Task

__all__ = (
    "ALLOWABLE_FIELDS",
    "ANONYMOUS",
    "DEFAULT_TENANT",
    "ROUTING_POLICIES",
    "AdapterRights",
    "AdminCredential",
    "Alias",
    "CorsPolicy",
    "KeyRecord",
    "Policy",
    "PreemptionPolicy",
    "QueuePolicy",
    "ResumePolicy",
    "RouteRule",
    "RoutingRules",
    "TenantPolicy",
    "WakePolicy",
    "WeightedPool",
    "nearest_routing_policy",
)

ANONYMOUS = "anonymous"
"""The tenant of every request where no keys are required."""

DEFAULT_TENANT = "default"
"""The tenant of all keys where the file names no tenant."""


ALLOWABLE_FIELDS = ("kv_transfer_params", "priority", "request_id", "vllm_xargs")
"""Fields of a request that only tenants with them in ``allow_fields`` may send to engines."""


ROUTING_POLICIES = (
    *("cost", "round_robin", "least_requests", "power_of_two", "consistent_hash"),
    *("smg", "dynamo", "llm_d", "aibrix"),
)
"""The ways to choose a replica, Longboat's own first; ``routing.policies`` has them."""


def nearest_routing_policy(name: str) -> str:
    """Return the policy that a wrong name probably means; empty where none is near."""
    return next(iter(difflib.get_close_matches(name.lower().replace("-", "_"), ROUTING_POLICIES, 1, 0.5)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantPolicy:
    """Limits and rights of one tenant. None means no limit."""

    name: str
    weight: float = 1.0  # share of busy engines, relative to other tenants of the same class
    priority: int = 1  # class; 0 goes first, and a request that waits long moves up a class
    requests_per_minute: int | None = None  # over a sliding minute
    tokens_per_minute: int | None = None  # prompt and completion tokens together, over a sliding minute
    tokens_per_day: int | None = None  # prompt and completion tokens together, per UTC day
    money_per_day: float | None = None  # what its requests cost, in the currency of the prices, per UTC day
    concurrent_requests: int | None = None  # waiting and running requests together
    max_context_tokens: int | None = None  # prompt and requested completion of one request
    models: tuple[str, ...] | None = None  # names that the tenant may ask for; None: all of them
    # tenants of one group share the engines' prefix caches; empty: the tenant has a cache of its own
    cache_group: str = ""
    tags: tuple[str, ...] = ()  # matched by routing rules
    allow_fields: tuple[str, ...] = ()  # which of ALLOWABLE_FIELDS its requests may have
    external: bool = False  # whether its requests for models of the fleet may fall back or overflow to external ones


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """An API key as it is stored: never the key itself."""

    key_id: str  # public name of the key, the middle of ``lb-<id>-<secret>``
    tenant: str
    sha256: str = field(repr=False)  # hex digest of the whole key
    created_s: float = 0.0  # Unix seconds
    expires_s: float | None = None  # Unix seconds; None: never
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminCredential:
    """A secret that opens the admin API."""

    name: str
    role: str  # ``viewer`` reads; ``operator`` also drains and the like
    sha256: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRights:
    """A LoRA adapter that is served under a name of its own, and who may use it."""

    name: str  # that clients use
    model: str  # that it adapts
    tenants: tuple[str, ...] | None = None  # that may use it; None: all that may use the model


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedPool:
    """A model of the fleet and its share of an alias's requests."""

    model: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """A name that clients use for one model, or for several with shares (a canary)."""

    name: str
    pools: tuple[WeightedPool, ...]
    # what keeps its pool: ``tenant``, ``user`` (the body's field, else the tenant), ``header:NAME`` or ``request``
    # (nothing)
    sticky: str = "user"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRule:
    """A rule that sends matching requests to ``to``. All its parts must match; the first rule that matches counts."""

    to: str  # a model or an alias
    model: str = "*"  # name that the request asks for; ``*``: any
    tenants: tuple[str, ...] = ()  # one of them must be the request's tenant; empty: all match
    tags: tuple[str, ...] = ()  # one of them must be a tag of the tenant; empty: all match
    # header (lower case) → value it must have; ``*``: any value
    headers: Mapping[str, str] = field(default_factory=dict)
    # top-level body field → value it must have; ``*``: any value
    fields: Mapping[str, str] = field(default_factory=dict)
    min_prompt_tokens: int | None = None  # bounds on the estimated prompt, both included
    max_prompt_tokens: int | None = None
    min_context_tokens: int | None = None  # bounds on prompt and requested completion together, both included
    max_context_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionPolicy:
    """The rules by which a running stream is paused so that a request of a better class gets its slot."""

    enabled: bool = True  # False: running streams are never paused
    wait_s: float = 0.25  # a request waits this long for a slot that becomes free by itself, before it takes one
    run_s: float = 2.0  # a stream gives its client tokens for at least this long between two pauses
    max_pauses: int = 2  # most pauses of one stream


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """The rules by which requests wait for a free slot."""

    max_waiting: int = 2000  # waiting requests of one model in one gateway process
    max_wait_s: float = 60.0  # longest predicted, and longest real, wait
    age_s: float = 10.0  # a waiting request moves up one class each time that this passes
    headroom_ratio: float = 0.1  # least part of an engine's slots that only tenants below their share may take
    preemption: PreemptionPolicy = PreemptionPolicy()


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePolicy:
    """The rules by which streams outlive the engines that serve them."""

    enabled: bool = True  # False: a stream ends when the engine that began it dies
    # longest wait for a replica, for a request whose engine died and that has no deadline; 0: no wait
    wait_s: float = 300.0
    # the same for a response that is not streamed, whose client gets no sign of life meanwhile
    whole_wait_s: float = 50.0
    comment_s: float = 5.0  # interval of the comments that keep a waiting stream's connection alive
    # part of a model's slots that resuming streams may take at the same time; the others queue
    capacity_ratio: float = 0.5
    seeds: bool = True  # requests without a seed get one; without a seed a sampled stream cannot be continued exactly


@dataclass(frozen=True, slots=True, kw_only=True)
class WakePolicy:
    """The rules by which requests wait for a model that has no replica, and wake it."""

    max_waiting: int = 1000  # waiting requests of one model in one gateway process
    # longest wait for a request that has no deadline; one that is not streamed waits ``ResumePolicy.whole_wait_s`` at
    # most
    wait_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingRules:
    """The rules by which a request gets one of its model's replicas."""

    policy: str = ROUTING_POLICIES[0]
    # requests with an equal value go to one replica while it serves: ``header:NAME`` or ``cookie:NAME``; empty: none
    sticky: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsPolicy:
    """Web pages that may call the gateway."""

    origins: tuple[str, ...] = ()  # exact origins, or ``*``; empty turns CORS off
    max_age_s: int = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Everything that a gateway can reload without a restart."""

    auth: str = "none"  # ``none`` | ``keys``
    tenants: tuple[TenantPolicy, ...] = ()
    keys: tuple[KeyRecord, ...] = ()
    admins: tuple[AdminCredential, ...] = ()
    sign_in: SignIn | None = None  # the provider through which people and tokens get roles; None: there is none
    aliases: tuple[Alias, ...] = ()
    # model → models tried after it, in order, until one answers
    fallbacks: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # model → where its requests go that would wait too long
    overflow: Mapping[str, Overflow] = field(default_factory=dict)
    prices: Mapping[str, Price] = field(default_factory=dict)  # model or adapter of the fleet → what its tokens cost
    tasks: Mapping[str, Task] = field(default_factory=dict)  # model of the fleet → what it is for; others: unknown
    media: Mapping[str, MediaRules] = field(default_factory=dict)  # model of the fleet → what its requests may hold
    external: tuple[ExternalModel, ...] = ()  # models that other people serve; gateways send to them by themselves
    adapters: tuple[AdapterRights, ...] = ()  # of all models
    rules: tuple[RouteRule, ...] = ()
    queue: QueuePolicy = QueuePolicy()
    resume: ResumePolicy = ResumePolicy()
    wake: WakePolicy = WakePolicy()
    routing: RoutingRules = RoutingRules()
    cors: CorsPolicy = CorsPolicy()
    trusted_proxies: tuple[str, ...] = ()  # networks of proxies that say truly which client they speak for
    demo: bool = False  # whether operators may kill engines to see that responses go on
    num_gateways: int = 1  # nodes that divide each tenant's limits where no Redis shares the counts
    salt: str = field(default="", repr=False)  # secret from which each tenant's ``cache_salt`` is made

    @property
    def all_prices(self) -> dict[str, Price]:
        """The price of each model that has one, external models included."""
        outside = {model.name: model.price for model in self.external if model.price is not None}
        return {**outside, **self.prices}

    def currencies_of(self, rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
        """Return the currency of each model that cost money. rows: of the usage"""
        used = {row["model"] for row in rows if row.get("cost_nanos")}
        return {name: price.currency for name, price in self.all_prices.items() if name in used}

    @property
    def currency(self) -> str:
        """The currency of the prices, which is one where tenants have limits of money; empty without a price."""
        return next((price.currency for price in self.all_prices.values()), "")
