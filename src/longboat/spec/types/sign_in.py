"""Sign-in through an OpenID Connect provider, as the gateway's part of the file has it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator, Field, ModelWrapValidatorHandler, model_validator
from pydantic_core import PydanticCustomError

from longboat.spec.types.gateway_values import FilePath, Variable, Word
from longboat.spec.types.section import Section, is_loopback, mistake, with_agreement

__all__ = ("GroupSpec", "SignInSpec")

DISCOVERY = "/.well-known/openid-configuration"
SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,128}")
CLAIM = re.compile(r"[\x21-\x7e]{1,256}")


def _url_parts(value: str, example: str) -> SplitResult:
    """Return the parts of an https address, or of an http one on this machine."""
    try:
        parts = urlsplit(value)
        _ = parts.port  # raises where it is not a number
    except ValueError:
        raise mistake(f"{value!r} is not an address", f"write it like {example}") from None
    if not parts.hostname or parts.scheme not in ("http", "https"):
        raise mistake(f"{value!r} is not https://HOST", f"write it like {example}")
    if parts.username is not None or parts.query or parts.fragment:
        raise mistake("the address has a user, a query or a fragment", f"write it like {example}")
    if parts.scheme == "http" and not is_loopback(parts.hostname):
        raise mistake(f"{value!r} is not encrypted", f"write https://{parts.netloc}{parts.path}")
    return parts


def _issuer(value: str) -> str:
    if value.endswith(DISCOVERY):
        raise mistake("this is the address of the provider's document", f"write {value.removesuffix(DISCOVERY)}")
    _url_parts(value, "https://id.example.com/realms/main")
    return value


def _console_url(value: str) -> str:
    example = "https://llm.example.com"
    parts = _url_parts(value, example)
    origin = f"{parts.scheme}://{parts.netloc.lower()}"
    if value != origin:
        raise mistake(f"{value!r} is not an origin: a scheme, a host and a port", f"write {origin}")
    return value


def _client_id(value: str) -> str:
    if not CLAIM.fullmatch(value):
        raise mistake("this is not 1 to 256 printable characters without spaces", "write what the provider shows")
    return value


def _scopes(values: tuple[str, ...]) -> tuple[str, ...]:
    if wrong := next((value for value in values if not SCOPE.fullmatch(value)), None):
        raise mistake(f"{wrong!r} is not a scope", "write one word for each scope: [openid, profile, groups]")
    if "openid" not in values:
        raise mistake("openid is missing: without it there is no ID token", f"write [{', '.join(('openid', *values))}]")
    return values


Text = Annotated[str, AfterValidator(_client_id)]
ConsoleUrl = Annotated[str, AfterValidator(_console_url)]


def _without_right(values: Mapping[str, Any]) -> Iterator[PydanticCustomError]:
    if values.get("role") is None and values.get("tenant") is None:
        yield mistake("the group has neither a role nor a tenant", "write role: viewer, or tenant: NAME")


def _two_secrets(values: Mapping[str, Any]) -> Iterator[PydanticCustomError]:
    if values.get("client_secret_env") is not None and values.get("client_secret_file") is not None:
        yield mistake("there are two secrets, client_secret_env and client_secret_file", "leave one of them out")


class GroupSpec(Section):
    """What the members of a provider's group may do: a role, a tenant, or both."""

    group: str = Field(min_length=1, max_length=256)
    """The group, as the provider writes it in the claim."""
    role: Literal["viewer", "operator"] | None = None
    """Their role at the console and the admin API; the highest one counts."""
    tenant: Word | None = None
    """The tenant whose records they see and in whose name they chat; of several, the first in this list."""

    @model_validator(mode="wrap")
    @classmethod
    def _some_right(cls, values: Any, handler: ModelWrapValidatorHandler[GroupSpec]) -> GroupSpec:
        return with_agreement(values, handler, cls, _without_right)


class SignInSpec(Section):
    """Sign-in at the console, and tokens at the admin API, through an OpenID Connect provider."""

    issuer: Annotated[str, AfterValidator(_issuer)]
    """The provider, exactly as its /.well-known/openid-configuration names it."""
    client_id: Text
    """The fleet's name at the provider."""
    client_secret_env: Variable | None = None
    """Environment variable with the client's secret, on the nodes."""
    client_secret_file: FilePath | None = None
    """File with the client's secret, as the nodes see it; without a secret, PKCE alone protects the code."""
    scopes: Annotated[tuple[str, ...], Field(max_length=50), AfterValidator(_scopes)] = ("openid", "profile")
    """What is asked of the provider; many need groups, or offline_access for a refresh token."""
    groups_claim: Text = "groups"
    """The claim with a person's groups; a.b is the member b of the claim a."""
    audiences: tuple[Text, ...] = Field(default=(), max_length=50)
    """Audiences of tokens that the admin API takes, beside client_id."""
    console_urls: tuple[ConsoleUrl, ...] = Field(min_length=1, max_length=1000)
    """Where browsers open the gateways (https://llm.example.com); the provider sends people back only to these."""
    groups: tuple[GroupSpec, ...] = Field(min_length=1, max_length=1000)
    """What the provider's groups may do; a person in none of them may not sign in."""

    @model_validator(mode="wrap")
    @classmethod
    def _one_secret(cls, values: Any, handler: ModelWrapValidatorHandler[SignInSpec]) -> SignInSpec:
        return with_agreement(values, handler, cls, _two_secrets)
