"""The provider's public keys: fetched again when they are old, or when a token names an unknown one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from longboat.gateway.sign_in.problems import ProviderSilentError, RefusedError
from longboat.gateway.sign_in.tokens import Header, public_keys

__all__ = ("KeySet",)

_GOOD_S = 300.0
"""Keys that the provider removed stay good for this time at most."""

_PAUSE_S = 10.0
"""Tokens with invented keys make the gateway ask the provider once in this time."""


class KeySet:
    """The keys of one provider, in one process."""

    def __init__(self, fetch: Callable[[], Awaitable[Any]]) -> None:
        self._fetch = fetch  # raises ProviderSilentError
        self._keys: list[dict[str, Any]] = []
        self._fetched_s = -_GOOD_S  # monotonic
        self._asked_s = -_PAUSE_S
        self._lock = asyncio.Lock()

    async def find(self, header: Header, now_s: float) -> dict[str, Any]:
        """Return the key that a token's header names. now_s: monotonic

        Raises RefusedError where the provider has no such key, ProviderSilentError where it does not give its keys.
        """
        if now_s - self._fetched_s >= _GOOD_S or self._match(header) is None:
            await self._refresh(header, now_s)
        found = self._match(header)
        if found is None:
            raise RefusedError("token_refused", "the provider has no key of this name for this algorithm")
        return found

    async def _refresh(self, header: Header, now_s: float) -> None:
        async with self._lock:
            is_good = now_s - self._fetched_s < _GOOD_S
            if is_good and self._match(header) is not None:
                return  # another request has fetched them meanwhile
            if now_s - self._asked_s < _PAUSE_S:
                if self._asked_s > self._fetched_s:
                    raise ProviderSilentError("the provider did not give its keys a moment ago")
                return
            self._asked_s = now_s
            keys = public_keys(await self._fetch())
            if not keys:
                raise ProviderSilentError("the provider's key set has no key that checks signatures")
            self._keys, self._fetched_s = keys, now_s

    def _match(self, header: Header) -> dict[str, Any] | None:
        """Return the key by its name; a token that names none needs a provider with one fitting key."""
        kind = "OKP" if header.algorithm == "EdDSA" else "EC" if header.algorithm.startswith("ES") else "RSA"
        fitting = [
            key for key in self._keys if key["kty"] == kind and key.get("alg", header.algorithm) == header.algorithm
        ]
        if header.key_id is None:
            return fitting[0] if len(fitting) == 1 else None
        return next((key for key in fitting if key.get("kid") == header.key_id), None)
