"""Checks a JSON Web Token: its signature, its issuer, its audience and its times."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jwt

from longboat.gateway.sign_in.problems import RefusedError

__all__ = ("ALGORITHMS", "Header", "claims_of", "header_of", "public_keys")

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""Signatures that only the holder of a private key can make. ``none`` and HMAC are not among them."""

_LEEWAY_S = 30
_MAX_TOKEN_CHARS = 32_768
_REASONS: Mapping[type[Exception], str] = {
    jwt.ExpiredSignatureError: "it has expired",
    jwt.ImmatureSignatureError: "it is of a later time",
    jwt.InvalidIssuerError: "it is of another issuer",
    jwt.InvalidAudienceError: "it is for another audience",
    jwt.InvalidSignatureError: "its signature is wrong",
}


class Header(NamedTuple):
    """The parts of a token's header that choose its key; nothing in it is trusted."""

    algorithm: str
    key_id: str | None


def header_of(token: str) -> Header:
    """Return the header. Raise RefusedError where it is not a signed token, or its algorithm is not allowed."""
    if len(token) > _MAX_TOKEN_CHARS:
        raise RefusedError("token_refused", f"it is longer than {_MAX_TOKEN_CHARS} characters")
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError:
        raise RefusedError("token_refused", "it is not a signed JSON Web Token") from None
    algorithm, key_id = header.get("alg"), header.get("kid")
    if algorithm not in ALGORITHMS:
        shown = repr(algorithm)[:40]
        raise RefusedError("token_refused", f"its algorithm is {shown}; allowed: {', '.join(ALGORITHMS)}")
    return Header(algorithm, key_id if isinstance(key_id, str) else None)


def public_keys(document: Any) -> list[dict[str, Any]]:
    """Return the keys of a provider's key set that can check signatures: no secrets, no keys for encryption."""
    keys = document.get("keys") if isinstance(document, Mapping) else None
    found = keys if isinstance(keys, list) else []
    return [
        key
        for key in found[:100]
        if isinstance(key, dict) and key.get("kty") in ("RSA", "EC", "OKP") and key.get("use", "sig") == "sig"
    ]


def claims_of(
    token: str, key: Mapping[str, Any], header: Header, *, issuer: str, audiences: Collection[str]
) -> dict[str, Any]:
    """Return the claims of a token that is signed with this key, for one of these audiences, and good now.

    Raises RefusedError with the reason.
    """
    if key.get("alg", header.algorithm) != header.algorithm:
        raise RefusedError("token_refused", "its algorithm is not the one of its key")
    try:
        public = jwt.PyJWK(dict(key), algorithm=header.algorithm)
        claims = jwt.decode(
            token,
            public,
            algorithms=[header.algorithm],
            issuer=issuer,
            audience=list(audiences),
            leeway=_LEEWAY_S,
            options={"require": ["iss", "sub", "aud", "exp", "iat"], "enforce_minimum_key_length": True},
        )
    except jwt.PyJWTError as error:
        raise RefusedError("token_refused", _reason(error)) from None
    if "events" in claims:
        raise RefusedError("token_refused", "it reports a logout and opens nothing")
    return dict(claims)


def _reason(error: jwt.PyJWTError) -> str:
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"it lacks the claim {error.claim!r}"
    return next((why for kind, why in _REASONS.items() if isinstance(error, kind)), "it cannot be checked")
