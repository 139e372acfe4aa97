"""One provider as this gateway process uses it: its document, its keys, its token endpoint and its userinfo."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote_plus

from longboat.core.sign_in import SignIn
from longboat.gateway.sign_in.client_secret import read_client_secret
from longboat.gateway.sign_in.endpoints import Endpoints, discovery_url, read_endpoints
from longboat.gateway.sign_in.key_set import KeySet
from longboat.gateway.sign_in.problems import ProviderSilentError, RefusedError
from longboat.gateway.sign_in.tokens import claims_of, header_of
from longboat.gateway.sign_in.web import Web

__all__ = ("Provider",)

_DOCUMENT_GOOD_S = 3600.0
_REFUSALS = ("invalid_grant", "access_denied", "interaction_required", "login_required", "consent_required")
"""Errors of the token endpoint that end a sign-in or a session: the person must sign in again, or may not."""


class Provider:
    """Asks the provider of one ``gateway.sign_in``. Methods raise ProviderSilentError where it gives no answer."""

    def __init__(self, sign_in: SignIn, monotonic_s: Callable[[], float]) -> None:
        self.sign_in = sign_in
        self._now_s = monotonic_s
        self._web = Web()
        self._keys = KeySet(self._fetch_keys)
        self._endpoints: Endpoints | None = None
        self._read_s = 0.0

    async def endpoints(self) -> Endpoints:
        """Return the provider's addresses, at most an hour old."""
        if self._endpoints is None or self._now_s() - self._read_s > _DOCUMENT_GOOD_S:
            issuer = self.sign_in.issuer
            status, document = await self._web.ask(discovery_url(issuer))
            if status != 200:
                raise ProviderSilentError(f"{discovery_url(issuer)} answered {status}: is the issuer right?")
            self._endpoints, self._read_s = read_endpoints(document, issuer), self._now_s()
        return self._endpoints

    async def redeem(self, code: str, verifier: str, redirect_uri: str) -> dict[str, Any]:
        """Return the tokens for a code. Raise RefusedError where the provider does not take it."""
        fields = {"code": code, "code_verifier": verifier, "redirect_uri": redirect_uri}
        return await self._tokens({"grant_type": "authorization_code", **fields})

    async def refresh(self, refresh_token: str) -> dict[str, Any]:
        """Return new tokens. Raise RefusedError where the provider has revoked the old ones."""
        return await self._tokens({"grant_type": "refresh_token", "refresh_token": refresh_token})

    async def userinfo(self, access_token: str, subject: str) -> dict[str, Any] | None:
        """Return what the provider says of a person now; None where it has no such address.

        Raises RefusedError where the provider does not take the token, or speaks of another person.
        """
        address = (await self.endpoints()).userinfo
        if not address:
            return None
        status, claims = await self._web.ask(address, headers={"authorization": f"Bearer {access_token}"})
        if status == 401 or (status != 200 and isinstance(claims, Mapping) and "error" in claims):
            raise RefusedError("token_refused", "the provider's userinfo does not take it")
        if status != 200 or not isinstance(claims, Mapping):
            raise ProviderSilentError(f"the provider's userinfo answered {status}, without claims")
        if claims.get("sub") != subject:
            raise RefusedError("token_refused", "the provider's userinfo is of another person")
        return dict(claims)

    async def verified(self, token: str, audiences: tuple[str, ...]) -> dict[str, Any]:
        """Return the claims of a token of this provider. Raise RefusedError with the reason where it is not good.

        A token that is for the gateway merely through the client's id, among several audiences, must be made for it.
        """
        header = header_of(token)
        key = await self._keys.find(header, self._now_s())
        claims = claims_of(token, key, header, issuer=self.sign_in.issuer, audiences=audiences)
        aud, party, client_id = claims["aud"], claims.get("azp"), self.sign_in.client_id
        several = aud if isinstance(aud, list) and len(aud) > 1 else ()
        is_for_api = any(name in several for name in audiences if name != client_id)
        if several and not is_for_api and party not in (None, *audiences):
            raise RefusedError("token_refused", "it was made for another client")
        return claims

    async def _fetch_keys(self) -> Any:
        status, document = await self._web.ask((await self.endpoints()).keys)
        if status != 200:
            raise ProviderSilentError(f"the provider's keys: it answered {status}")
        return document

    async def _tokens(self, form: dict[str, str]) -> dict[str, Any]:
        endpoints, client_id = await self.endpoints(), self.sign_in.client_id
        secret = read_client_secret(self.sign_in)
        headers = {}
        if secret and not endpoints.posts_secret:
            pair = f"{quote_plus(client_id)}:{quote_plus(secret)}".encode()
            headers["authorization"] = f"Basic {base64.b64encode(pair).decode()}"
        else:
            form = {**form, "client_id": client_id, **({"client_secret": secret} if secret else {})}
        status, found = await self._web.ask(endpoints.token, form=form, headers=headers)
        if status == 200 and isinstance(found, Mapping):
            return dict(found)
        reason = found.get("error") if isinstance(found, Mapping) else None
        what = f"the token endpoint answered {status} {str(reason)[:60]!r}"
        if reason in _REFUSALS:
            raise RefusedError("refused", what)
        raise ProviderSilentError(what)  # a mistake in the setup, or a proxy's page: it says nothing of the person
