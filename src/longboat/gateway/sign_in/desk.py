"""The gateway's desk for people and tokens of a provider: loads what that needs at its first use."""

from __future__ import annotations

import asyncio
import hmac
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from longboat.core.clock import Clock
from longboat.core.sign_in import SignIn
from longboat.gateway.config import GatewayConfig
from longboat.gateway.sign_in.grants import Grant
from longboat.gateway.sign_in.problems import ProviderSilentError

if TYPE_CHECKING:
    from longboat.gateway.sign_in.bearers import Bearers
    from longboat.gateway.sign_in.people import Arrival, Departure, People
    from longboat.gateway.sign_in.provider import Provider

__all__ = ("SESSION_LIFE_S", "SignInDesk", "looks_like_token")

SESSION_LIFE_S = 12 * 3600.0
"""What is kept of a session is forgotten after this time, as the session's cookie is."""

_MODULES = ("provider", "people", "bearers")


class SignInDesk:
    """Made with the gateway; imports neither httpx nor PyJWT nor cryptography before its first question."""

    def __init__(self, config: GatewayConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._provider: Provider | None = None
        self._people: People | None = None
        self._bearers: Bearers | None = None

    async def begin(self, sign_in: SignIn, console_url: str) -> Departure:
        """See :meth:`People.begin`."""
        provider = await self._ready(sign_in)
        assert self._people is not None
        return await self._people.begin(provider, console_url)

    async def finish(self, sign_in: SignIn, sealed: str, given: Mapping[str, str]) -> Arrival:
        """See :meth:`People.finish`."""
        provider = await self._ready(sign_in)
        assert self._people is not None
        return await self._people.finish(provider, sealed, given)

    async def person(self, sign_in: SignIn, session_id: str) -> Grant | None:
        """See :meth:`People.grant`."""
        provider = await self._ready(sign_in)
        assert self._people is not None
        return await self._people.grant(provider, session_id)

    async def bearer(self, sign_in: SignIn, token: bytes) -> Grant:
        """See :meth:`Bearers.grant`."""
        provider = await self._ready(sign_in)
        assert self._bearers is not None
        return await self._bearers.grant(provider, token.decode("latin-1"))

    async def end(self, sign_in: SignIn, session_id: str) -> None:
        """See :meth:`People.end`."""
        await self._ready(sign_in)
        assert self._people is not None
        self._people.end(session_id)

    async def _ready(self, sign_in: SignIn) -> Provider:
        """Return the provider of the policy in force. Raise ProviderSilentError where the libraries are missing."""
        if self._provider is not None and self._provider.sign_in == sign_in:
            return self._provider
        try:
            for name in _MODULES:  # about 300 ms at the first use, in a thread
                await asyncio.to_thread(importlib.import_module, f"longboat.gateway.sign_in.{name}")
        except ImportError as error:
            what = f"this node lacks the package {error.name}: install longboat[oidc]"
            raise ProviderSilentError(what) from None
        self._make()
        from longboat.gateway.sign_in.provider import Provider

        self._provider = Provider(sign_in, self._clock.monotonic_s)
        return self._provider

    def _make(self) -> None:
        if self._people is not None:
            return
        from longboat.gateway.sign_in.bearers import Bearers
        from longboat.gateway.sign_in.people import People

        config = self._config
        socket = config.parent_socket or config.control_socket
        secret = hmac.digest(config.control_token.encode(), b"longboat sign-in", "sha256")
        folder = Path(socket).parent / "console-sign-ins" if socket else None
        self._people = People(secret, folder, SESSION_LIFE_S, self._clock.unix_s)
        self._bearers = Bearers(self._clock.unix_s)


def looks_like_token(presented: bytes) -> bool:
    """Return whether a presented key is written as a JSON Web Token; keys of Longboat are not."""
    return presented.startswith(b"ey") and presented.count(b".") == 2
