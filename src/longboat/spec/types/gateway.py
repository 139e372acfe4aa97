"""The gateway's part of the file: address, users, routing and logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ModelWrapValidatorHandler, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from longboat.core.sizes import size_bytes
from longboat.spec.types.external import PriceSpec
from longboat.spec.types.gateway_values import (
    AliasName,
    Digest,
    FilePath,
    Headers,
    HttpUrl,
    ModelName,
    Network,
    Origin,
    RedisUrl,
    ReplicaSticky,
    RoutingPolicyName,
    Size,
    Sticky,
    Tokens,
    Variable,
    Weight,
    Word,
)
from longboat.spec.types.section import Section, host_name, is_loopback, mistake, with_agreement
from longboat.spec.types.sign_in import SignInSpec

__all__ = (
    "AdminSpec",
    "AliasSpec",
    "CorsSpec",
    "GatewaySpec",
    "LogsSpec",
    "OverflowSpec",
    "PoolSpec",
    "QueueSpec",
    "RedisSpec",
    "ResumeSpec",
    "RoutingSpec",
    "RuleSpec",
    "TenantSpec",
    "TlsSpec",
    "TracingSpec",
)

MAX_TENANTS = 10_000
MAX_ENTRIES = 1000


class TlsSpec(Section):
    """HTTPS at the gateways."""

    certificate: FilePath
    """PEM file with the certificate and its chain, as the nodes see it; read again when it changes."""
    key: FilePath
    """PEM file with the private key, as the nodes see it."""


class TenantSpec(Section):
    """A user of the models; null means no limit."""

    name: Word
    """Name of the tenant."""
    weight: Weight = 1.0
    """Share of busy engines, relative to other tenants of the same priority."""
    priority: int = Field(default=1, ge=0, le=9)
    """Class when engines are busy; 0 goes first, and requests that wait long move up a class."""
    requests_per_minute: Tokens | None = None
    """Requests per minute."""
    tokens_per_minute: Tokens | None = None
    """Prompt and completion tokens per minute."""
    tokens_per_day: Tokens | None = None
    """Prompt and completion tokens per UTC day."""
    money_per_day: float | None = Field(default=None, gt=0, le=1_000_000)
    """What its requests may cost per UTC day, in the currency of the prices."""
    concurrent_requests: Tokens | None = None
    """Concurrent requests, including waiting ones."""
    max_context_tokens: Tokens | None = None
    """Prompt plus requested completion of one request, in tokens."""
    models: tuple[ModelName, ...] | None = Field(default=None, max_length=MAX_ENTRIES)
    """Models and aliases that the tenant may use; null allows all."""
    cache_group: Word | None = None
    """Tenants of one group share the engines' prefix cache; null isolates the tenant."""
    tags: tuple[Word, ...] = Field(default=(), max_length=50)
    """Words that rules can match."""
    external: bool = False
    """Whether its requests for models of the fleet may fall back or overflow to external models."""
    allow_fields: tuple[Literal["kv_transfer_params", "priority", "request_id", "vllm_xargs"], ...] = ()
    """Fields for trusted tenants only that this tenant may send to the engines."""


def _one_of(values: Mapping[str, Any], names: tuple[str, ...], hint: str) -> Iterator[PydanticCustomError]:
    if sum(values.get(name) is not None for name in names) != 1:
        yield mistake(f"it needs exactly one of {', '.join(names)}", hint)


def _secrets(values: Mapping[str, Any]) -> Iterator[PydanticCustomError]:
    return _one_of(values, ("secret_file", "secret_env", "sha256"), "write secret_file: /etc/longboat/admin-secret")


def _urls(values: Mapping[str, Any]) -> Iterator[PydanticCustomError]:
    return _one_of(values, ("url", "url_file", "url_env"), "write url: redis://HOST:6379/0")


class AdminSpec(Section):
    """A user of the admin API, known by a secret: one of secret_file, secret_env and sha256."""

    name: Word
    """Name, for logs."""
    role: Literal["viewer", "operator"] = "viewer"
    """viewer reads; operator also drains."""
    secret_file: FilePath | None = None
    """File with the secret, on the machine that runs longboat up."""
    secret_env: Variable | None = None
    """Environment variable of longboat up with the secret."""
    sha256: Digest | None = None
    """SHA-256 of the secret, in hex; a secret has at least 16 random characters."""

    @model_validator(mode="wrap")
    @classmethod
    def _one_secret(cls, values: Any, handler: ModelWrapValidatorHandler[AdminSpec]) -> AdminSpec:
        return with_agreement(values, handler, cls, _secrets)


class CorsSpec(Section):
    """Web pages that may call the gateways from a browser; none by default."""

    origins: tuple[Origin, ...] = Field(default=(), max_length=MAX_ENTRIES)
    """Origins (https://app.example.com), or "*"."""
    max_age_s: int = Field(default=600, ge=0, le=86_400)
    """Seconds that browsers cache the permission."""


class PoolSpec(Section):
    """A model that serves an alias."""

    model: ModelName
    """A model of the fleet."""
    weight: Weight = 1.0
    """Its share of the alias's requests, relative to the other pools."""


def _pool_or_pools(pools: tuple[PoolSpec, ...], info: ValidationInfo) -> tuple[PoolSpec, ...]:
    if "model" in info.data and (info.data["model"] is None) == (not pools):
        raise mistake(
            "it needs exactly one of model and pools", "write model: NAME, or pools: [{model: NAME, weight: 9}]"
        )
    if len(names := [pool.model for pool in pools]) != len(set(names)):
        raise mistake("a model is named twice", "give each pool another model")
    return pools


class AliasSpec(Section):
    """Another name for a model, or for several with shares (a canary)."""

    name: AliasName
    """The name that clients send in model."""
    model: ModelName | None = None
    """The model that serves the alias."""
    pools: Annotated[
        tuple[PoolSpec, ...], Field(max_length=50, validate_default=True), AfterValidator(_pool_or_pools)
    ] = ()
    """The models that share the alias."""
    sticky: Sticky = "user"
    """What keeps requests on one pool: tenant, user (of the request, else the tenant), header:NAME; request: none."""


def _ordered(upper: int | None, info: ValidationInfo) -> int | None:
    name = str(info.field_name).replace("max_", "min_")
    lower = info.data.get(name)
    if upper is not None and lower is not None and upper < lower:
        raise mistake(f"{upper} is less than {name}, {lower}", f"write {lower}")
    return upper


Upper = Annotated[Tokens | None, AfterValidator(_ordered)]


class RuleSpec(Section):
    """Sends matching requests to another model; the first rule that matches counts."""

    to: ModelName
    """The model or alias that gets the request."""
    model: ModelName = "*"
    """The requested name; "*" is any."""
    tenants: tuple[Word, ...] = Field(default=(), max_length=MAX_ENTRIES)
    """The tenant is one of these; empty matches all."""
    tags: tuple[Word, ...] = Field(default=(), max_length=50)
    """The tenant has one of these tags; empty matches all."""
    headers: Headers = Field(default_factory=dict, max_length=50)
    """Headers, in lower case, and their values; "*" is any value."""
    fields: dict[str, str] = Field(default_factory=dict, max_length=50)
    """Top-level fields of the request's body and their values; "*" is any value."""
    min_prompt_tokens: Tokens | None = None
    """Least number of tokens of the prompt, as estimated."""
    max_prompt_tokens: Upper = None
    """Greatest number of tokens of the prompt, as estimated."""
    min_context_tokens: Tokens | None = None
    """Least number of tokens of the prompt plus the requested completion."""
    max_context_tokens: Upper = None
    """Greatest number of tokens of the prompt plus the requested completion."""


class OverflowSpec(Section):
    """Where requests go that would wait too long for their model."""

    to: ModelName
    """The model that serves them, of the fleet or external; they stay where it has no room."""
    after_s: float = Field(default=5.0, ge=0, le=3600)
    """Seconds of waiting after which a request goes there."""


class PreemptionSpec(Section):
    """When a running stream is paused so that a request of a better class gets its slot."""

    enabled: bool = True
    """Whether streams are paused; only tenants with different priorities are affected."""
    wait_s: float = Field(default=0.25, ge=0, le=3600)
    """Seconds that a request waits for a slot that becomes free by itself, before a stream is paused for it."""
    run_s: float = Field(default=2.0, ge=0.1, le=3600)
    """Seconds for which a stream runs at least between two pauses."""
    max_pauses: int = Field(default=2, ge=0, le=100)
    """Most pauses of one stream."""


class QueueSpec(Section):
    """How requests wait while every engine is busy."""

    max_waiting: int = Field(default=2000, ge=0, le=1_000_000)
    """Waiting requests per model and gateway process."""
    max_wait_s: float = Field(default=60.0, ge=0, le=86_400)
    """Longest wait in seconds; a request that would wait longer gets a 429 immediately."""
    age_s: float = Field(default=10.0, ge=0.1, le=86_400)
    """Seconds after which a waiting class counts as the class above, each time that they pass."""
    headroom_ratio: float = Field(default=0.1, ge=0, le=0.9)
    """Least fraction of an engine's slots that is reserved for tenants below their share."""
    preemption: PreemptionSpec = PreemptionSpec()
    """When a running stream makes room for a request of a better class."""


class ResumeSpec(Section):
    """How responses outlive the engines that make them."""

    enabled: bool = True
    """Whether another replica continues a stream whose engine died."""
    wait_s: float = Field(default=300.0, ge=0, le=86_400)
    """Seconds that a request without a deadline waits for a replica after its engine died; 0: it does not wait."""
    whole_wait_s: float = Field(default=50.0, ge=0, le=86_400)
    """The same for a request that does not stream, if shorter: its client gets no sign of life."""
    comment_s: float = Field(default=5.0, ge=0.1, le=3600)
    """Seconds between the comments that keep the connection of a waiting stream alive."""
    capacity_ratio: float = Field(default=0.5, gt=0, le=1)
    """Fraction of a model's slots that resumed responses may take at the same time; the others queue."""
    seeds: bool = True
    """Whether requests without a seed get one: without a seed, a response cannot be continued exactly."""


class RoutingSpec(Section):
    """How a request gets one of its model's replicas."""

    policy: RoutingPolicyName = "cost"
    """cost takes the replica where the request costs least time; the others are what peers do, for comparison."""
    sticky: ReplicaSticky | None = None
    """header:NAME or cookie:NAME: requests with an equal value go to one replica while it serves; null: none."""


class LogsSpec(Section):
    """The access log: one JSON line for each request, without prompts."""

    access: bool = True
    """Whether it is written."""
    max_bytes: Size = "100MiB"
    """Size at which the file is rotated."""
    keep: int = Field(default=5, ge=0, le=1000)
    """Number of rotated files that are kept."""

    @property
    def size_bytes(self) -> int:
        """max_bytes as a number."""
        return size_bytes(self.max_bytes)


class TracingSpec(Section):
    """OpenTelemetry traces of gateway and engine."""

    endpoint: HttpUrl
    """Address of an OTLP/HTTP collector: http://collector:4318."""
    sample_ratio: float = Field(default=1.0, ge=0, le=1)
    """Fraction of the requests that are traced; a client's traceparent overrides it."""


class RedisSpec(Section):
    """Redis, through which all gateways count tenants' limits together: one of url, url_file and url_env."""

    url: RedisUrl | None = None
    """redis://HOST:PORT/DB, without a password."""
    url_file: FilePath | None = None
    """File with the URL, as the nodes see it."""
    url_env: Variable | None = None
    """Environment variable with the URL, on the nodes."""

    @model_validator(mode="wrap")
    @classmethod
    def _one_url(cls, values: Any, handler: ModelWrapValidatorHandler[RedisSpec]) -> RedisSpec:
        return with_agreement(values, handler, cls, _urls)


def _open_on_purpose(auth: str | None, info: ValidationInfo) -> str | None:
    host = info.data.get("host")
    if auth is None and host is not None and not is_loopback(host):
        raise mistake(
            f"host {host} is open to other machines, and no auth is set",
            "write auth: keys, auth: none if everyone who reaches it may use the models, or host: 127.0.0.1",
        )
    return auth


class GatewaySpec(Section):
    """The OpenAI-compatible address: one gateway on every node."""

    host: Annotated[str, AfterValidator(host_name)] = "127.0.0.1"
    """Address that the gateways listen on."""
    port: int = Field(default=8000, ge=1, le=65535)
    """TCP port that the gateways listen on."""
    processes: int = Field(default=1, ge=1, le=64)
    """Gateway processes on each node."""
    auth: Annotated[Literal["keys", "none"] | None, Field(validate_default=True), AfterValidator(_open_on_purpose)] = (
        None
    )
    """keys requires an API key of every request; "none" lets everyone who reaches the address use the models."""
    tls: TlsSpec | None = None
    """HTTPS; null is plain HTTP."""
    tenants: tuple[TenantSpec, ...] = Field(default=(), max_length=MAX_TENANTS)
    """The users of the models, with their limits."""
    admin: tuple[AdminSpec, ...] = Field(default=(), max_length=100)
    """The users of the admin API; none by default."""
    sign_in: SignInSpec | None = None
    """Sign-in at the console and the admin API through an OpenID Connect provider; null has none."""
    cors: CorsSpec = CorsSpec()
    """Web pages that may call the gateways."""
    trusted_proxies: tuple[Network, ...] = Field(default=(), max_length=1000)
    """Addresses of proxies whose X-Forwarded-For names the client: failed sign-ins count by it. None by default."""
    aliases: tuple[AliasSpec, ...] = Field(default=(), max_length=MAX_ENTRIES)
    """Other names for models."""
    fallbacks: dict[ModelName, tuple[ModelName, ...]] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    """Model: the models that are tried in order if it cannot serve a request and no response has begun."""
    overflow: dict[ModelName, OverflowSpec] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    """Model: where its requests go that would wait too long for it."""
    prices: dict[ModelName, PriceSpec] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    """Model of the fleet: what its tokens cost the tenants."""
    rules: tuple[RuleSpec, ...] = Field(default=(), max_length=MAX_ENTRIES)
    """Rules that send requests to other models; the first that matches counts."""
    queue: QueueSpec = QueueSpec()
    """How requests wait."""
    resume: ResumeSpec = ResumeSpec()
    """How responses outlive the engines that make them."""
    routing: RoutingSpec = RoutingSpec()
    """How a request gets one of its model's replicas."""
    logs: LogsSpec = LogsSpec()
    """The access log."""
    tracing: TracingSpec | None = None
    """OpenTelemetry traces; null sends none."""
    redis: RedisSpec | None = None
    """Redis for limits that all gateways count together; null gives each node its share of them."""
    demo: bool = False
    """A demo fleet: operators may kill the engine of a response, which another replica then continues."""
