"""Values of the gateway's part of the file: how each is written, and how a wrong one is refused."""

from __future__ import annotations

import re
from ipaddress import ip_network
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from longboat.core.policy import ROUTING_POLICIES, nearest_routing_policy
from longboat.spec.types.section import absolute_file, address_parts, checked_size, mistake

__all__ = (
    "AliasName",
    "Digest",
    "FilePath",
    "Headers",
    "HttpUrl",
    "ModelName",
    "Network",
    "Origin",
    "RedisUrl",
    "ReplicaSticky",
    "RoutingPolicyName",
    "Size",
    "Sticky",
    "Tokens",
    "Variable",
    "Weight",
    "Word",
)

MAX_TOKENS = 10**15

WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
ALIAS_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:/-]{0,126}[A-Za-z0-9])?")
COOKIE_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
HEADER_NAME = re.compile(r"[a-z0-9]([a-z0-9_-]{0,62}[a-z0-9])?")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
SHA256 = re.compile(r"[0-9a-f]{64}")
STICKY = ("tenant", "user", "request")


def _word(value: str) -> str:
    if not WORD.fullmatch(value):
        near = re.sub(r"[^A-Za-z0-9._-]+", "-", value)[:63].strip("._-") or "team-a"
        raise mistake(f"{value!r} is not 1 to 63 of letters, digits, '.', '_', '-'", f"write {near}")
    return value


def _alias_name(value: str) -> str:
    if not ALIAS_NAME.fullmatch(value):
        near = re.sub(r"[^A-Za-z0-9._:/-]+", "-", value)[:128].strip("._:/-") or "alias"
        what = f"{value!r} is not 1 to 128 of letters, digits, '.', '_', '-', ':', '/'"
        raise mistake(what, f"write {near}")
    return value


def _variable(value: str) -> str:
    if not VARIABLE.fullmatch(value):
        raise mistake(f"{value!r} is not the name of an environment variable", "write it like REDIS_URL")
    return value


def _sha256(value: str) -> str:
    if not SHA256.fullmatch(value):
        raise mistake(
            "this is not a SHA-256 in hex (64 of 0-9, a-f)",
            'printf %s "$SECRET" | sha256sum prints it; or use secret_file',
        )
    return value


def _sticky(value: str) -> str:
    kind, colon, header = value.partition(":")
    if value not in STICKY and not (kind == "header" and colon and HEADER_NAME.fullmatch(header)):
        raise mistake(
            f"{value!r} is not one of tenant, user, request, header:NAME",
            "write tenant, user, request or header:x-name (in lower case)",
        )
    return value


def _replica_sticky(value: str) -> str:
    kind, _, name = value.partition(":")
    pattern = {"header": HEADER_NAME, "cookie": COOKIE_NAME}.get(kind)
    if pattern is None or not pattern.fullmatch(name):
        raise mistake(
            f"{value!r} is neither header:NAME nor cookie:NAME",
            "write header:x-session-id (in lower case), cookie:SESSION, or leave it out",
        )
    return value


def _routing_policy(value: str) -> str:
    if value not in ROUTING_POLICIES:
        nearest = nearest_routing_policy(value) or ROUTING_POLICIES[0]
        raise mistake(f"{value!r} is not one of {', '.join(ROUTING_POLICIES)}", f"write {nearest}")
    return value


def _headers(value: dict[str, str]) -> dict[str, str]:
    for name in value:
        if not HEADER_NAME.fullmatch(name):
            raise mistake(f"{name!r} is not a header's name in lower case", f"write {name.lower()}")
    return value


def _http_url(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_address = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port is none, or the brackets of a host are open
        is_address = False
    if is_address and (parts.username or parts.password):
        hint = "write it without, and set OTEL_EXPORTER_OTLP_HEADERS where nodes start"
        raise mistake("the collector's address holds a password", hint)
    if not is_address:
        raise mistake(f"{value!r} is not http://HOST:PORT", "write it like http://collector:4318")
    return value


def _origin(value: str) -> str:
    parts = address_parts(value, "https://app.example.com")
    is_origin = parts.scheme in ("http", "https") and parts.netloc and f"{parts.scheme}://{parts.netloc}" == value
    if value != "*" and not is_origin:
        raise mistake(
            f"{value!r} is not an origin of web pages", 'write it like https://app.example.com, or "*" for all'
        )
    return value


def _network(value: str) -> str:
    example = "write an address or a network, like 10.0.0.7 or 10.0.0.0/24"
    try:
        network = ip_network(value, strict=False)
    except ValueError:
        raise mistake(f"{value!r} is not the address of a proxy", example) from None
    if network.prefixlen == 0:
        raise mistake(f"{value!r} trusts every client to name itself", example)
    return value


def _redis_url(value: str) -> str:
    parts = address_parts(value, "redis://HOST:6379/0")
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise mistake(f"{parts.scheme!r} is not the scheme of a Redis URL", "write redis://HOST:6379/0")
    if parts.password or parts.username:
        raise mistake(
            "the file holds a password", "keep the URL in a file of its own: url_file: /etc/longboat/redis-url"
        )
    return value


Word = Annotated[str, AfterValidator(_word)]
ModelName = Annotated[str, Field(min_length=1, max_length=128)]
FilePath = Annotated[str, AfterValidator(absolute_file)]
Variable = Annotated[str, AfterValidator(_variable)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Weight = Annotated[float, Field(ge=0.001, le=1_000_000)]
AliasName = Annotated[str, AfterValidator(_alias_name)]
Digest = Annotated[str, AfterValidator(_sha256)]
Sticky = Annotated[str, AfterValidator(_sticky)]
ReplicaSticky = Annotated[str, AfterValidator(_replica_sticky)]
RoutingPolicyName = Annotated[
    str, AfterValidator(_routing_policy), Field(json_schema_extra={"enum": list(ROUTING_POLICIES)})
]
Headers = Annotated[dict[str, str], AfterValidator(_headers)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
Origin = Annotated[str, AfterValidator(_origin)]
Network = Annotated[str, AfterValidator(_network)]
Size = Annotated[str, AfterValidator(lambda value: checked_size(value, "100MiB"))]
RedisUrl = Annotated[str, AfterValidator(_redis_url)]
