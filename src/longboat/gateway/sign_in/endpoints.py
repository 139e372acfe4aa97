"""The addresses that a provider names in its document, checked. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from longboat.gateway.sign_in.problems import ProviderSilentError

__all__ = ("Endpoints", "discovery_url", "read_endpoints")


class Endpoints(NamedTuple):
    """Where the provider does what."""

    authorization: str
    token: str
    keys: str
    userinfo: str  # empty: it has none
    posts_secret: bool  # the token endpoint takes the client's secret only in the form
    names_itself: bool  # its answers at the callback name the issuer (RFC 9207)


def discovery_url(issuer: str) -> str:
    """Return the address of the provider's document."""
    return issuer.rstrip("/") + "/.well-known/openid-configuration"


def read_endpoints(document: Any, issuer: str) -> Endpoints:
    """Read the document. Raise ProviderSilentError where it is not this issuer's, or names an unsafe address."""
    if not isinstance(document, Mapping):
        raise ProviderSilentError(f"{discovery_url(issuer)} is not a JSON object: is the issuer right?")
    if document.get("issuer") != issuer:
        named = str(document.get("issuer"))[:200]
        raise ProviderSilentError(f"the provider calls itself {named!r}: write that as gateway.sign_in.issuer")
    methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
    return Endpoints(
        authorization=_address(document, "authorization_endpoint", issuer),
        token=_address(document, "token_endpoint", issuer),
        keys=_address(document, "jwks_uri", issuer),
        userinfo=_address(document, "userinfo_endpoint", issuer) if document.get("userinfo_endpoint") else "",
        posts_secret=isinstance(methods, list) and "client_secret_basic" not in methods,
        names_itself=document.get("authorization_response_iss_parameter_supported") is True,
    )


def _address(document: Mapping[str, Any], name: str, issuer: str) -> str:
    """Return an address: encrypted, and on no inner address, unless the issuer's own host is such."""
    value = document.get(name)
    what = f"the provider's {name} is {str(value)[:200]!r}"
    if not isinstance(value, str) or not value.isascii() or not value.isprintable() or " " in value:
        raise ProviderSilentError(f"{what}, which is not an address of printable ASCII without spaces")
    try:
        parts, own = urlsplit(value), urlsplit(issuer)
    except ValueError as error:
        raise ProviderSilentError(f"{what}: {error}") from None
    is_own = (parts.scheme, parts.netloc) == (own.scheme, own.netloc)
    if not parts.hostname or not (is_own or (parts.scheme == "https" and not _is_inner(parts.hostname, own.hostname))):
        raise ProviderSilentError(f"{what}, which is not https, or is an inner address")
    return value


def _is_inner(host: str, own: str | None) -> bool:
    """Return whether a host is written as an address inside; names are looked up by the provider's DNS."""
    if host == own:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return False
