"""A model of the file at addresses outside the fleet: nothing is started for it."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field, ValidationInfo

from longboat.spec.types.gateway_values import FilePath, Headers, ModelName, Tokens, Variable, Word
from longboat.spec.types.section import Section, address_parts, mistake

__all__ = ("KIND", "ExternalModelSpec", "ExternalSpec", "PriceSpec", "SpendingSpec")

KIND = "external"
"""The ``kind`` of an engine that somebody else runs."""

CURRENCY = re.compile(r"[A-Z]{3}")
VALUE = re.compile(r"[ -~]{1,1000}")
SECRET = re.compile(r"authorization|api[-_]?key|token|secret|password|cookie|credential", re.IGNORECASE)
OWN_HEADERS = (
    "accept-encoding", "connection", "content-length", "content-type", "expect", "host", "te", "trailer",
    "transfer-encoding", "upgrade",
)  # fmt: skip


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("https", "http") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        raise mistake(f"{value!r} is not an address", "write it like https://api.example.com/v1") from None
    if parts.username or parts.password:
        raise mistake("the address holds a password", "name the variable that holds the key: api_key_env: PROVIDER_KEY")
    if not usable or not value.isascii() or not value.isprintable() or " " in value:
        raise mistake(f"{value!r} is not an address", _url_hint(value, parts))
    if parts.query or parts.fragment:
        address = f"{parts.scheme}://{parts.netloc}{parts.path}"
        raise mistake(
            "the address has a query or a fragment, which may hold a key",
            f"write {address}, and name the variable that holds a key: api_key_env: PROVIDER_KEY",
        )
    return value.rstrip("/")


def _url_hint(value: str, parts: SplitResult) -> str:
    if re.fullmatch(r"[A-Za-z0-9.-]+(:\d+)?(/.*)?", value):
        return f"write https://{value}"
    return f"write https://{parts.netloc}{parts.path}" if parts.netloc else "write it like https://api.example.com/v1"


def _different(urls: tuple[str, ...]) -> tuple[str, ...]:
    if not urls:
        raise mistake("there is no address", "write urls: [https://api.example.com/v1]")
    for index, url in enumerate(urls):
        if url in urls[:index]:
            raise mistake(f"{url} is listed twice", "keep one of them")
    return urls


def _proxy(value: str) -> str:
    parts = address_parts(value, "http://proxy.example.com:3128")
    if parts.username or parts.password:
        raise mistake("the proxy's address holds a password", "use a proxy that knows this machine by its address")
    if parts.scheme != "http" or not parts.hostname or parts.port is None or parts.path.strip("/"):
        raise mistake(f"{value!r} is not http://HOST:PORT", "write it like http://proxy.example.com:3128")
    return value.rstrip("/")


def _no_second_key(file: str | None, info: ValidationInfo) -> str | None:
    if file is not None and info.data.get("api_key_env") is not None:
        raise mistake("api_key_env and api_key_file are both given", "write one of the two")
    return file


def _open_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, value in headers.items():
        if name in OWN_HEADERS:
            raise mistake(f"the gateway writes {name} itself", f"leave {name} out")
        if SECRET.search(name):
            hint = f"write api_key_file: /etc/longboat/key and api_key_header: {name}"
            raise mistake(f"{name} looks like a secret, and this file is shown to everyone", hint)
        if not VALUE.fullmatch(value):
            raise mistake(f"the value of {name} is not 1 to 1000 printable characters", "write plain ASCII text")
    return headers


def _header(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?", value) or value in OWN_HEADERS:
        raise mistake(f"{value!r} is not the name of a header for a key, in lower case", "write it like api-key")
    return value


def _currency(value: str) -> str:
    if not CURRENCY.fullmatch(value):
        raise mistake(f"{value!r} is not a currency's three letters", "write it like USD or EUR")
    return value


def _priced(price: PriceSpec | None, info: ValidationInfo) -> PriceSpec | None:
    limits = info.data.get("limits")
    if price is None and isinstance(limits, SpendingSpec) and limits.money_per_day is not None:
        hint = "write price: {input_per_million: 0.5, output_per_million: 1.5}"
        raise mistake("limits.money_per_day needs a price: without one, nothing costs money", hint)
    return price


class SpendingSpec(Section):
    """What may be spent on an external model in one UTC day, by all tenants together; null means no limit."""

    requests_per_day: Tokens | None = None
    """Requests per UTC day."""
    tokens_per_day: Tokens | None = None
    """Prompt and completion tokens per UTC day."""
    money_per_day: float | None = Field(default=None, gt=0, le=1_000_000)
    """Money per UTC day, in the currency of the price."""


class PriceSpec(Section):
    """What the tokens of a model cost."""

    input_per_million: float = Field(ge=0, le=1_000_000)
    """Price of a million prompt tokens."""
    output_per_million: float = Field(ge=0, le=1_000_000)
    """Price of a million completion tokens."""
    currency: Annotated[str, AfterValidator(_currency)] = "USD"
    """Three letters of the currency."""


class ExternalSpec(Section):
    """Addresses outside the fleet that serve a model."""

    kind: Literal["external"]
    """external: somebody else serves the model, and nothing is started for it."""
    urls: Annotated[tuple[Annotated[str, AfterValidator(_url)], ...], AfterValidator(_different)] = Field(
        max_length=50, json_schema_extra={"minItems": 1}
    )
    """Addresses, as client libraries take them: https://api.example.com/v1. Several are replicas."""
    api: Literal["openai", "anthropic"] = "openai"
    """What the addresses speak; requests are passed on as they are, so clients must speak it too."""
    model: ModelName | None = None
    """What the addresses call the model; null is the model's name."""
    api_key_env: Variable | None = None
    """Environment variable with the API key, on the nodes."""
    api_key_file: Annotated[FilePath | None, AfterValidator(_no_second_key)] = None
    """File with the API key, as the nodes see it; read again when it changes."""
    api_key_header: Annotated[str, AfterValidator(_header)] | None = None
    """Header that carries the key; null is "authorization: Bearer KEY", or x-api-key for anthropic."""
    headers: Annotated[Headers, AfterValidator(_open_headers)] = Field(default_factory=dict, max_length=20)
    """Further headers of each request, in lower case; not for secrets."""
    proxy: Annotated[str, AfterValidator(_proxy)] | None = None
    """http://HOST:PORT of a proxy; null takes HTTPS_PROXY, HTTP_PROXY and NO_PROXY of the nodes."""
    connect_s: float = Field(default=10.0, ge=0.1, le=120)
    """Seconds within which a connection and its TLS handshake must be ready."""
    limits: SpendingSpec = SpendingSpec()
    """What may be spent in one UTC day."""
    price: Annotated[PriceSpec | None, Field(validate_default=True), AfterValidator(_priced)] = None
    """What tokens cost; null counts no money."""


class ExternalModelSpec(Section):
    """A model that somebody else serves."""

    name: Word
    """Name that clients use."""
    engine: ExternalSpec
    """Where it is served."""
