"""The gateway's part of the file: address, who may use it, where requests are sent, what is written down."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from longboat.core.sizes import size_bytes
from longboat.spec.types.gateway_values import (
    AliasName,
    Digest,
    FilePath,
    Headers,
    HttpUrl,
    ModelName,
    Origin,
    RedisUrl,
    Size,
    Sticky,
    Tokens,
    Variable,
    Weight,
    Word,
)
from longboat.spec.types.section import Section, host_name, is_loopback, mistake

__all__ = (
    "DEFAULT_TENANT",
    "AdminSpec",
    "AliasSpec",
    "CorsSpec",
    "GatewaySpec",
    "LogsSpec",
    "PoolSpec",
    "QueueSpec",
    "RedisSpec",
    "ResumeSpec",
    "RuleSpec",
    "TenantSpec",
    "TlsSpec",
    "TracingSpec",
)

DEFAULT_TENANT = "default"
"""The tenant of all keys where the file names no tenant."""

MAX_TENANTS = 10_000
MAX_ENTRIES = 1000


class TlsSpec(Section):
    """HTTPS at the gateways."""

    certificate: FilePath
    """PEM file with the certificate and its chain, as the nodes see it; read again when it changes."""
    key: FilePath
    """PEM file with the private key, as the nodes see it."""


class TenantSpec(Section):
    """Somebody who uses the models; null is no limit."""

    name: Word
    """Name of the tenant."""
    weight: Weight = 1.0
    """Share of busy engines, relative to other tenants of the same priority."""
    priority: int = Field(default=1, ge=0, le=9)
    """Class when engines are busy: 0 goes first; what waits long is lifted to the class above."""
    requests_per_minute: Tokens | None = None
    """Requests in any minute."""
    tokens_per_minute: Tokens | None = None
    """Prompt and completion tokens in any minute."""
    tokens_per_day: Tokens | None = None
    """Prompt and completion tokens in a day of UTC."""
    concurrent_requests: Tokens | None = None
    """Requests at once, waiting ones included."""
    max_context_tokens: Tokens | None = None
    """Prompt and asked-for completion of one request."""
    models: tuple[ModelName, ...] | None = Field(default=None, max_length=MAX_ENTRIES)
    """Models and aliases that the tenant may ask for; null is all of them."""
    cache_group: Word | None = None
    """Tenants of one group share what engines cache of prompts; null keeps the tenant's own apart."""
    tags: tuple[Word, ...] = Field(default=(), max_length=50)
    """Words that rules can ask for."""
    allow_fields: tuple[Literal["kv_transfer_params", "priority", "request_id", "vllm_xargs"], ...] = ()
    """Fields that engines get only from trusted tenants, which this tenant may send."""


class AdminSpec(Section):
    """Who may use the admin API, by a secret of their own: one of secret_file, secret_env and sha256."""

    name: Word
    """Name, for logs."""
    role: Literal["viewer", "operator"] = "viewer"
    """viewer reads; operator drains as well."""
    secret_file: FilePath | None = None
    """File with the secret, on the machine that reads this file."""
    secret_env: Variable | None = None
    """Environment variable with the secret, of the command that reads this file."""
    sha256: Digest | None = None
    """SHA-256 of the secret, in hex; the secret has at least 16 characters, made at random."""

    @model_validator(mode="after")
    def _one_secret(self) -> AdminSpec:
        if sum(part is not None for part in (self.secret_file, self.secret_env, self.sha256)) != 1:
            raise mistake(
                "there must be one of secret_file, secret_env, sha256", "write secret_file: /etc/longboat/admin-secret"
            )
        return self


class CorsSpec(Section):
    """Web pages that may call the gateways from a browser; none by default."""

    origins: tuple[Origin, ...] = Field(default=(), max_length=MAX_ENTRIES)
    """Origins (https://app.example.com), or "*"."""
    max_age_s: int = Field(default=600, ge=0, le=86_400)
    """Seconds that browsers keep the permission."""


class PoolSpec(Section):
    """A model that serves an alias."""

    model: ModelName
    """A model of the fleet."""
    weight: Weight = 1.0
    """Its share of the alias's requests, relative to the other pools."""


def _pool_or_pools(pools: tuple[PoolSpec, ...], info: ValidationInfo) -> tuple[PoolSpec, ...]:
    if "model" in info.data and (info.data["model"] is None) == (not pools):
        raise mistake("there must be one of model and pools", "write model: NAME, or pools: [{model: NAME, weight: 9}]")
    if len(names := [pool.model for pool in pools]) != len(set(names)):
        raise mistake("a model is named twice", "give each pool another model")
    return pools


class AliasSpec(Section):
    """Another name for a model, or for several with shares (a canary)."""

    name: AliasName
    """What clients write in model."""
    model: ModelName | None = None
    """The model that serves all of it."""
    pools: Annotated[
        tuple[PoolSpec, ...], Field(max_length=50, validate_default=True), AfterValidator(_pool_or_pools)
    ] = ()
    """The models that share it."""
    sticky: Sticky = "user"
    """What stays with its pool: tenant, user (of the request, else the tenant), header:NAME; request: nothing does."""


def _ordered(upper: int | None, info: ValidationInfo) -> int | None:
    name = str(info.field_name).replace("max_", "min_")
    lower = info.data.get(name)
    if upper is not None and lower is not None and upper < lower:
        raise mistake(f"{upper} is less than {name}, {lower}", f"write {lower}")
    return upper


Upper = Annotated[Tokens | None, AfterValidator(_ordered)]


class RuleSpec(Section):
    """Sends requests elsewhere; the first rule whose parts all match counts."""

    to: ModelName
    """The model or alias that gets them."""
    model: ModelName = "*"
    """The name that was asked for; "*" is any."""
    tenants: tuple[Word, ...] = Field(default=(), max_length=MAX_ENTRIES)
    """Tenants it is for; empty is all."""
    tags: tuple[Word, ...] = Field(default=(), max_length=50)
    """The tenant carries one of these tags; empty asks for none."""
    headers: Headers = Field(default_factory=dict, max_length=50)
    """Headers (small letters) and their values; "*" is any value."""
    fields: dict[str, str] = Field(default_factory=dict, max_length=50)
    """Fields at the top of the request's body and their values; "*" is any value."""
    min_prompt_tokens: Tokens | None = None
    """Prompt of at least so many tokens, as estimated."""
    max_prompt_tokens: Upper = None
    """Prompt of at most so many tokens, as estimated."""
    min_context_tokens: Tokens | None = None
    """Prompt and asked-for completion of at least so many tokens."""
    max_context_tokens: Upper = None
    """Prompt and asked-for completion of at most so many tokens."""


class QueueSpec(Section):
    """How requests wait while no engine has room."""

    max_waiting: int = Field(default=2000, ge=0, le=1_000_000)
    """Requests of one model that wait in one gateway process."""
    max_wait_s: float = Field(default=60.0, ge=0, le=86_400)
    """Longest wait, and longest predicted wait, in seconds; what would wait longer is refused with 429."""
    age_s: float = Field(default=10.0, ge=0.1, le=86_400)
    """After each such time, what waits counts as of the class above."""
    headroom_ratio: float = Field(default=0.1, ge=0, le=0.9)
    """Part of an engine's slots that only tenants below their share may take."""


class ResumeSpec(Section):
    """How answers outlive the engines that give them."""

    enabled: bool = True
    """Whether a stream whose engine died goes on from another replica."""
    wait_s: float = Field(default=300.0, ge=0, le=86_400)
    """Longest wait for a replica, in seconds, of a request whose engine died and that names no deadline; 0: none."""
    whole_wait_s: float = Field(default=50.0, ge=0, le=86_400)
    """The same for a request whose answer is no stream, where it is shorter: its client gets no sign of life."""
    comment_s: float = Field(default=5.0, ge=0.1, le=3600)
    """A stream that waits gets a comment so often, in seconds, which keeps its connection alive."""
    capacity_ratio: float = Field(default=0.5, gt=0, le=1)
    """Part of a model's slots that answers may take at once while they are taken up again; the others queue."""
    seeds: bool = True
    """Whether requests that name no seed get one, without which their answer cannot be continued exactly."""


class LogsSpec(Section):
    """The access log: one JSON line for each request, without prompts."""

    access: bool = True
    """Whether it is written."""
    max_bytes: Size = "100MiB"
    """Size at which the file is put aside."""
    keep: int = Field(default=5, ge=0, le=1000)
    """Files put aside that are kept."""

    @property
    def size_bytes(self) -> int:
        """max_bytes as a number."""
        return size_bytes(self.max_bytes)


class TracingSpec(Section):
    """OpenTelemetry traces of gateway and engine."""

    endpoint: HttpUrl
    """Address of an OTLP/HTTP collector: http://collector:4318."""
    sample_ratio: float = Field(default=1.0, ge=0, le=1)
    """Part of the requests that are traced; what a client's traceparent says counts more."""


class RedisSpec(Section):
    """Redis, through which all gateways count tenants' limits together: one of url, url_file and url_env."""

    url: RedisUrl | None = None
    """redis://HOST:PORT/DB, without a password."""
    url_file: FilePath | None = None
    """File with the URL, as the nodes see it."""
    url_env: Variable | None = None
    """Environment variable with the URL, on the nodes."""

    @model_validator(mode="after")
    def _one_url(self) -> RedisSpec:
        if sum(part is not None for part in (self.url, self.url_file, self.url_env)) != 1:
            raise mistake("there must be one of url, url_file, url_env", "write url: redis://HOST:6379/0")
        return self


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
    """keys asks every request for an API key; "none" says that everyone who reaches the address may use the models."""
    tls: TlsSpec | None = None
    """HTTPS; null is plain HTTP."""
    tenants: tuple[TenantSpec, ...] = Field(default=(), max_length=MAX_TENANTS)
    """Who uses the models, and how much."""
    admin: tuple[AdminSpec, ...] = Field(default=(), max_length=100)
    """Who may use the admin API; nobody by default."""
    cors: CorsSpec = CorsSpec()
    """Web pages that may call the gateways."""
    aliases: tuple[AliasSpec, ...] = Field(default=(), max_length=MAX_ENTRIES)
    """Other names for models."""
    fallbacks: dict[ModelName, tuple[ModelName, ...]] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    """Model: models that are tried after it, in order, while nothing was answered."""
    rules: tuple[RuleSpec, ...] = Field(default=(), max_length=MAX_ENTRIES)
    """Where requests are sent by what they are; the first that matches counts."""
    queue: QueueSpec = QueueSpec()
    """How requests wait."""
    resume: ResumeSpec = ResumeSpec()
    """How answers outlive the engines that give them."""
    logs: LogsSpec = LogsSpec()
    """The access log."""
    tracing: TracingSpec | None = None
    """OpenTelemetry traces; null sends none."""
    redis: RedisSpec | None = None
    """Redis for limits that all gateways count together; null gives each node its part of them."""
