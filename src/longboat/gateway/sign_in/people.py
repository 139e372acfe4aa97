"""People who sign in at the console: from the first click to a session whose groups are asked for again."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from longboat.core.sign_in import SignIn
from longboat.gateway.sign_in.grants import Grant, grant_of, groups_in, name_in
from longboat.gateway.sign_in.problems import ProviderSilentError, RefusedError
from longboat.gateway.sign_in.provider import Provider
from longboat.gateway.sign_in.records import Records
from longboat.gateway.sign_in.sealed import Seal
from longboat.gateway.sign_in.shared_work import SharedWork
from longboat.gateway.sign_in.way import CALLBACK, WAY_S, Way, authorization_url, checked_code

__all__ = ("BELIEVED_S", "CHECK_S", "Arrival", "Departure", "People")

CHECK_S = 30.0
"""Groups older than this are asked for again before the next request is answered; so are those that the clock, which
went back, has still to come to."""

BELIEVED_S = 60.0
"""Groups older than this give no right, even while the provider is silent."""

_DEADLINE_S = 15.0
"""A request waits for the groups for this time; the question itself goes on, for a new refresh token comes with it."""


class Departure(NamedTuple):
    """A browser on its way to the provider."""

    url: str
    sealed: str  # what it carries


class Arrival(NamedTuple):
    """A person who came back from the provider."""

    session_id: str
    name: str


class _Held(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of a session, sealed under a key that only the browser's cookie gives."""

    subject: str
    name: str
    groups: tuple[str, ...]
    checked_s: float  # Unix seconds at which the provider named these groups
    by_userinfo: bool  # False: a new ID token names the groups
    access_token: str
    refresh_token: str


class People:
    """Begins, finishes and checks sign-ins. All processes of a node share a secret and a folder."""

    def __init__(self, secret: bytes, folder: Path | None, life_s: float, now_s: Callable[[], float]) -> None:
        """life_s: of a session; now_s: gives Unix seconds"""
        self._secret = secret
        self._ways = Seal(secret, "way")
        self._used = Records(folder / "used" if folder else None, WAY_S * 2)
        self._open = Records(folder / "open" if folder else None, life_s)
        self._checks: SharedWork[str, _Held | None] = SharedWork()
        self._now_s = now_s

    async def begin(self, provider: Provider, console_url: str) -> Departure:
        """Send a browser to the provider. Raise ProviderSilentError where its addresses cannot be read."""
        endpoints, sign_in = await provider.endpoints(), provider.sign_in
        way = Way(
            state=secrets.token_urlsafe(24),
            nonce=secrets.token_urlsafe(24),
            verifier=secrets.token_urlsafe(48),
            console_url=console_url,
            digest=sign_in.digest,
            began_s=self._now_s(),
        )
        sealed = self._ways.close(msgspec.json.encode(way))
        return Departure(authorization_url(sign_in, endpoints.authorization, way), sealed)

    async def finish(self, provider: Provider, sealed: str, given: Mapping[str, str]) -> Arrival:
        """Open a session for a browser that comes back. given: the query of its request

        Raises RefusedError, and ProviderSilentError.
        """
        way = self._way(sealed)
        names_itself = (await provider.endpoints()).names_itself
        code = checked_code(provider.sign_in, way, given, names_itself=names_itself, now_s=self._now_s())
        await self._use_once(way.state)
        tokens = await provider.redeem(code, way.verifier, way.console_url + CALLBACK)
        claims = await provider.verified(_text(tokens, "id_token"), (provider.sign_in.client_id,))
        if not hmac.compare_digest(str(claims.get("nonce", "")).encode(), way.nonce.encode()):
            raise RefusedError("refused", "the ID token was made for another sign-in")
        held = await self._held(provider, claims, tokens)
        if grant_of(provider.sign_in, held.name, held.groups) is None:
            raise RefusedError("no_group", f"none of the groups of {held.name!r} is in gateway.sign_in.groups")
        session_id = secrets.token_urlsafe(24)
        self._keep(session_id, held, begins=True)
        return Arrival(session_id, held.name)

    async def grant(self, provider: Provider, session_id: str) -> Grant | None:
        """Return what the person of a session may do now; None where the session has ended.

        Raises ProviderSilentError where the groups are too old and the provider does not answer.
        """
        held = self._read(session_id)
        if held is not None and not 0 <= self._now_s() - held.checked_s < CHECK_S:
            held = await self._checked(provider, session_id)
        return None if held is None else grant_of(provider.sign_in, held.name, held.groups)

    def end(self, session_id: str) -> None:
        """Forget a session and its tokens."""
        self._open.drop(self._file_of(session_id))

    async def _held(self, provider: Provider, claims: Mapping[str, Any], tokens: Mapping[str, Any]) -> _Held:
        """Find out how the groups can be asked for again: they must be, so that a removed group is noticed."""
        subject, claim = str(claims["sub"]), provider.sign_in.groups_claim
        access, refresh = _text(tokens, "access_token"), _text(tokens, "refresh_token")
        said = await provider.userinfo(access, subject) if access else None
        by_userinfo = groups_in(said or {}, claim)
        groups = by_userinfo if by_userinfo is not None else groups_in(claims, claim) or ()
        if by_userinfo is None and groups and not refresh:
            what = f"neither userinfo has the claim {claim!r}, nor is there a refresh token (scope offline_access)"
            raise RefusedError("unchecked", f"a removed group could not be noticed: {what}")
        return _Held(
            subject=subject,
            name=name_in({**claims, **(said or {})}),
            groups=_known(provider.sign_in, groups),
            checked_s=self._now_s(),
            by_userinfo=by_userinfo is not None,
            access_token=access,
            refresh_token=refresh,
        )

    async def _checked(self, provider: Provider, session_id: str) -> _Held | None:
        """Ask for the groups again; other requests and processes wait for the same answer.

        A client that leaves does not end the question: the provider may have changed the refresh token already.
        """
        try:
            async with asyncio.timeout(_DEADLINE_S):
                return await self._checks.join(session_id, lambda: self._check(provider, session_id))
        except (ProviderSilentError, OSError) as error:  # a TimeoutError is an OSError
            held = self._read(session_id)
            if held is None or 0 <= self._now_s() - held.checked_s < BELIEVED_S:
                return held
            raise ProviderSilentError(str(error) or "it takes too long") from None

    async def _check(self, provider: Provider, session_id: str) -> _Held | None:
        async with self._open.locked(self._file_of(session_id)):
            held = self._read(session_id)
            if held is None or 0 <= self._now_s() - held.checked_s < CHECK_S:
                return held
            try:
                return self._keep(session_id, await self._asked_again(provider, session_id, held))
            except RefusedError:
                self.end(session_id)
                return None

    async def _asked_again(self, provider: Provider, session_id: str, held: _Held) -> _Held:
        asked_s, claim = self._now_s(), provider.sign_in.groups_claim
        claims: Mapping[str, Any] | None
        if held.by_userinfo:
            try:
                claims = await provider.userinfo(held.access_token, held.subject)
            except RefusedError:  # the token's time is over, or it was revoked
                held, _ = await self._refreshed(provider, session_id, held)
                claims = await provider.userinfo(held.access_token, held.subject)
        else:
            held, claims = await self._refreshed(provider, session_id, held)
        groups = _known(provider.sign_in, groups_in(claims or {}, claim) or ())
        return msgspec.structs.replace(held, groups=groups, checked_s=asked_s)

    async def _refreshed(self, provider: Provider, session_id: str, held: _Held) -> tuple[_Held, Mapping[str, Any]]:
        """Return the session with new tokens, and the claims of a new ID token, of which some providers make none.

        The new tokens are stored at once: the old refresh token may be good no longer, whatever fails afterwards.
        """
        if not held.refresh_token:
            raise RefusedError("refused", "there is no refresh token")
        tokens = await provider.refresh(held.refresh_token)
        access, refresh = _text(tokens, "access_token"), _text(tokens, "refresh_token") or held.refresh_token
        held = msgspec.structs.replace(held, access_token=access, refresh_token=refresh)
        self._keep(session_id, held)
        claims: Mapping[str, Any] = {}
        if token := _text(tokens, "id_token"):
            claims = await provider.verified(token, (provider.sign_in.client_id,))
            if claims["sub"] != held.subject:
                raise RefusedError("refused", "the new ID token is of another person")
        return held, claims

    def _way(self, sealed: str) -> Way:
        try:
            return msgspec.json.decode(self._ways.open(sealed) or b"", type=Way)
        except msgspec.MsgspecError:
            raise RefusedError("expired", "this browser has begun no sign-in here") from None

    async def _use_once(self, state: str) -> None:
        if not await self._used.has_room() or not await self._open.has_room():
            raise RefusedError("busy", "there are too many sign-ins")
        if not self._used.add_new(hashlib.sha256(state.encode()).hexdigest()):
            raise RefusedError("expired", "the state was used before")

    def _keep(self, session_id: str, held: _Held, *, begins: bool = False) -> _Held | None:
        """Store what is known of a session; return None where the person signed out meanwhile."""
        if not begins and self._read(session_id) is None:
            return None
        seal = Seal(self._secret, f"session {session_id}")
        self._open.put(self._file_of(session_id), seal.close(msgspec.json.encode(held)))
        return held

    def _read(self, session_id: str) -> _Held | None:
        text = self._open.get(self._file_of(session_id))
        document = Seal(self._secret, f"session {session_id}").open(text) if text else None
        return msgspec.json.decode(document, type=_Held) if document else None

    def _file_of(self, session_id: str) -> str:
        return hmac.new(self._secret, b"file " + session_id.encode(), hashlib.sha256).hexdigest()[:40]


def _known(sign_in: SignIn, groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return the groups that mean something here: people are in thousands of others."""
    named = {entry.group for entry in sign_in.groups}
    return tuple(group for group in groups if group in named)


def _text(tokens: Mapping[str, Any], name: str) -> str:
    value = tokens.get(name)
    return value if isinstance(value, str) else ""
