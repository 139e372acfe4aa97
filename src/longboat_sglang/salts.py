"""Keeps the prefix caches of tenants apart where SGLang drops the gateway's salt: in Anthropic's messages."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from typing import Any

from longboat_vllm.resume.carry import CARRY

__all__ = ("BODY", "PATH", "Body")

PATH = "/v1/messages"
_FIELD = "cache_salt"


class Body:
    """The body of one request, noted while SGLang reads it."""

    def __init__(self, scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Any]]) -> None:
        self._receive = receive
        self._pieces: list[bytes] = []
        carried = next((value for name, value in scope["headers"] if name == CARRY), b"0")
        self._start = int(carried) if carried.isdigit() else 0

    async def receive(self) -> Any:
        """Be the request's ``receive``."""
        message = await self._receive()
        self._pieces.append(message.get("body", b""))
        return message

    def salt(self) -> str | None:
        """Return the salt that the gateway wrote into the body; None where there is none."""
        content = b"".join(self._pieces)[self._start :]
        if _FIELD.encode() not in content:
            return None
        try:
            found = json.loads(content).get(_FIELD)
        except (ValueError, AttributeError):
            return None
        return found if isinstance(found, str) else None


BODY: ContextVar[Body | None] = ContextVar("longboat_body", default=None)
"""The body of the messages request that the running task works for."""
