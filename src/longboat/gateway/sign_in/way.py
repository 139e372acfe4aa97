"""The way to the provider and back: what the browser carries meanwhile, and the address that it goes to. Pure."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from urllib.parse import urlencode, urlsplit

import msgspec

from longboat.core.sign_in import SignIn
from longboat.gateway.sign_in.problems import RefusedError

__all__ = ("CALLBACK", "WAY_S", "Way", "authorization_url", "checked_code", "console_url_of")

CALLBACK = "/console/api/oidc/callback"
WAY_S = 600.0
"""A person has this time to sign in at the provider."""


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """A sign-in that has begun. The browser carries it, sealed."""

    state: str
    nonce: str
    verifier: str  # of PKCE
    console_url: str
    digest: str  # of the client at the provider
    began_s: float  # Unix seconds


def console_url_of(sign_in: SignIn, host: str) -> str | None:
    """Return the allowed address whose host a request names; None where it is another one."""
    return next((url for url in sign_in.console_urls if urlsplit(url).netloc == host.lower()), None)


def authorization_url(sign_in: SignIn, endpoint: str, way: Way) -> str:
    """Return the provider's address to which the browser goes."""
    challenge = base64.urlsafe_b64encode(hashlib.sha256(way.verifier.encode()).digest()).rstrip(b"=").decode()
    query = {
        "response_type": "code",
        "client_id": sign_in.client_id,
        "redirect_uri": way.console_url + CALLBACK,
        "scope": " ".join(sign_in.scopes),
        "state": way.state,
        "nonce": way.nonce,
        "code_challenge": challenge,
        "code_challenge_method": "S256",
    }
    return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(query)}"


def checked_code(sign_in: SignIn, way: Way, given: Mapping[str, str], *, names_itself: bool, now_s: float) -> str:
    """Return the code that the provider sent back with the browser. Raise RefusedError where it is not of this way."""
    is_state = hmac.compare_digest(given.get("state", "").encode(), way.state.encode())
    if not is_state or way.digest != sign_in.digest or not 0 <= now_s - way.began_s + 60 <= WAY_S + 60:
        raise RefusedError("expired", "the answer belongs to no sign-in of this browser, or came too late")
    issuer = given.get("iss")
    if issuer != sign_in.issuer and (issuer is not None or names_itself):
        raise RefusedError("refused", "the answer is of another issuer")
    if "error" in given:
        raise RefusedError("denied", f"the provider answered {given['error'][:60]!r}")
    if not given.get("code"):
        raise RefusedError("refused", "the answer has no code")
    return given["code"]
