"""Tokens that programs send to the admin API in place of a key."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from longboat.gateway.sign_in.grants import Grant, grant_of, groups_in, name_in
from longboat.gateway.sign_in.people import BELIEVED_S, CHECK_S
from longboat.gateway.sign_in.problems import ProviderSilentError, RefusedError
from longboat.gateway.sign_in.provider import Provider
from longboat.gateway.sign_in.shared_work import SharedWork

__all__ = ("Bearers",)

_MAX = 1000


class _Checked(NamedTuple):
    subject: str
    name: str
    groups: tuple[str, ...]
    checked_s: float  # Unix seconds at which the provider named these groups
    ends_s: float
    by_userinfo: bool


class Bearers:
    """Remembers tokens that were good, so that the provider is asked about each of them every 30 s at most."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """now_s: gives Unix seconds"""
        self._now_s = now_s
        self._checked: dict[bytes, _Checked] = {}
        self._checks: SharedWork[bytes, _Checked] = SharedWork()

    async def grant(self, provider: Provider, token: str) -> Grant:
        """Return what a token's bearer may do.

        A token's own groups count for a minute after its issue, afterwards those that userinfo has for it.

        Raises RefusedError with the reason, ProviderSilentError.
        """
        digest = hashlib.sha256(f"{provider.sign_in.digest} {token}".encode()).digest()
        known, now_s = self._checked.get(digest), self._now_s()
        if known is None or not 0 <= now_s - known.checked_s < CHECK_S or now_s >= known.ends_s:
            known = await self._checks.join(digest, partial(self._check, provider, token, known))
            self._checked.pop(digest, None)
            if len(self._checked) >= _MAX:
                del self._checked[next(iter(self._checked))]
            self._checked[digest] = known
        grant = grant_of(provider.sign_in, known.name, known.groups)
        if grant is None:
            raise RefusedError("not_allowed", "none of its groups is in gateway.sign_in.groups")
        return grant

    async def _check(self, provider: Provider, token: str, known: _Checked | None) -> _Checked:
        sign_in = provider.sign_in
        claims = await provider.verified(token, (sign_in.client_id, *sign_in.audiences))
        subject, issued_s, ends_s = str(claims["sub"]), float(claims["iat"]), float(claims["exp"])
        own = groups_in(claims, sign_in.groups_claim)
        if own is not None and self._now_s() - issued_s < BELIEVED_S:
            # it is due for userinfo when its own groups are a minute old
            checked_s = min(issued_s + BELIEVED_S - CHECK_S, self._now_s())
            return _Checked(subject, name_in(claims), own, checked_s, ends_s, by_userinfo=False)
        asked_s = self._now_s()
        try:
            said = await provider.userinfo(token, subject)
        except ProviderSilentError:
            if known is not None and known.by_userinfo and 0 <= self._now_s() - known.checked_s < BELIEVED_S:
                return known
            raise
        except RefusedError:
            said = None
        groups = groups_in(said or {}, sign_in.groups_claim)
        if groups is None:
            what = f"its groups are older than a minute, and userinfo has no claim {sign_in.groups_claim!r} for it"
            raise RefusedError("token_old", f"{what}: get a new token")
        return _Checked(subject, name_in({**claims, **(said or {})}), groups, asked_s, ends_s, by_userinfo=True)
