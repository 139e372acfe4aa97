"""The connection to Redis over which a gateway's batches go."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import orjson

from longboat.core.errors import UserInputError
from longboat.gateway.limits.redis_script import SCRIPT, Batch

__all__ = ("RedisLink",)

CALL_S = 1.0


class RedisLink:
    """Runs the script. A failed call raises one of ``failures`` within a second, and may have been carried out."""

    def __init__(self, url: str) -> None:
        """Prepare to connect to ``url``, which is never shown. Raise UserInputError where it cannot be used."""
        # what calls raise, and what the call of a script raises that Redis does not know
        self._client, self.failures, self._no_script = _client(url)
        # the host, for messages
        self.place = urlsplit(url).hostname or "its socket"
        # the digest by which Redis knows the script
        self._script: str | None = None

    async def send(self, batch: Batch) -> dict[str, Any]:
        """Carry out a batch; return the script's reply."""
        async with asyncio.timeout(CALL_S):
            reply: dict[str, Any] = orjson.loads(await self._evaluate(batch))
        return reply

    async def close(self) -> None:
        with suppress(*self.failures):  # TimeoutError is an OSError
            async with asyncio.timeout(CALL_S):
                await self._client.aclose()

    async def _evaluate(self, batch: Batch) -> bytes:
        if self._script is None:
            self._script = str(await self._client.script_load(SCRIPT))
        try:
            return bytes(await self._client.evalsha(self._script, len(batch.keys), *batch.keys, batch.document))
        except self._no_script:  # Redis was restarted
            self._script = None
            return await self._evaluate(batch)


def _client(url: str) -> tuple[Any, tuple[type[Exception], ...], type[Exception]]:
    """Return the client, what its calls raise, and what a call of an unknown script raises."""
    try:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import NoScriptError, RedisError
    except ImportError:
        hint = "install it: pip install 'longboat[redis]'"
        raise UserInputError("counting in Redis needs the package redis", hint=hint) from None
    try:
        client = Redis.from_url(url, socket_timeout=CALL_S, socket_connect_timeout=CALL_S, retry=Retry(NoBackoff(), 0))
    except ValueError:  # its text may hold parts of the password
        hint = "write redis://[user:password@]host:port/db, rediss://… or unix://path"
        raise UserInputError("the Redis URL cannot be used", hint=hint) from None
    return client, (RedisError, OSError), NoScriptError
