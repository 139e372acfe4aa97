"""Engines that died, and the requests that are blamed for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from longboat.clock import WALL
from longboat.core.clock import Clock
from longboat.gateway.http.message import ask
from longboat.gateway.http.request import request_digest
from longboat.routing.health.liveness import QUIT
from longboat.routing.health.poison import PoisonList, request_to_blame
from longboat.telemetry import Guard, logger

if TYPE_CHECKING:
    from collections.abc import Hashable

    from longboat.gateway.upstreams.upstream import Upstream

__all__ = ("CrashBlame", "is_dead", "until_answers", "was_asked_to_end")

log = logger("gateway")

_ASK_EVERY_S = 1.0
_DYING_S = 0.1  # a process that was killed still takes connections for a moment
_MANY_DIE_S = 0.25  # engines that die within this time of each other have another cause than a request
_ONE_DEATH_S = 1.0  # all connections of a dead engine end within this time
_QUARANTINE_S = 0.3  # what was lost with it is beyond its first steps elsewhere by then, so that blame is clear
_LOOK_EVERY_S, _LAST_BEAT_S = 0.1, 2.0  # a node that answers no more is found within that time


class CrashBlame:
    """The deaths of engines as one process knows them, from its own requests only."""

    __slots__ = ("_clock", "_last", "_poison", "any_blamed")

    def __init__(self, clock: Clock = WALL) -> None:
        self._clock = clock
        self._poison = PoisonList()
        self.any_blamed = False  # whether any request was ever blamed
        self._last: dict[str, tuple[float, Hashable | None]] = {}

    def suspect(self, upstream: Upstream, now_s: float, *, sure: bool) -> Hashable | None:
        """Return the request to blame for the loss of an engine: the only one in its first steps there, else None.

        Every request that is lost with the engine gets the same result. Call it before the request leaves the engine.
        sure: at least one request was lost
        """
        died_s, who = self._last.get(upstream.key, (-_ONE_DEATH_S, None))
        if now_s - died_s >= _ONE_DEATH_S:
            who = None
            if not any(now_s - at_s < _MANY_DIE_S for at_s, _ in self._last.values()):
                who = request_to_blame(stream.admitted(now_s) for stream in upstream.streams)
            self._last = {key: last for key, last in self._last.items() if now_s - last[0] < _ONE_DEATH_S}
            self._last[upstream.key] = (now_s, who)
            if who is None and sure:
                self._poison.blame_none(now_s)
        return who

    def blame(self, digest: str) -> bool:
        """Count a confirmed death, and return whether it makes the request poison."""
        self.any_blamed = True
        return self._poison.blame(digest, self._clock.monotonic_s())

    def acquit(self, digest: str) -> None:
        """Clear a request that was completed in the end: the death was chance."""
        self._poison.forget(digest)

    def is_poison(self, path: bytes, body: bytes) -> bool:
        """Return whether the request is refused because of the deaths that it caused."""
        return self._poison.is_poison(request_digest(path, body), self._clock.monotonic_s())


async def is_dead(upstream: Upstream, timeout_s: float) -> bool:
    """Return whether the engine accepts no connection, or closes it at once."""
    writer = None
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(*upstream.target)
        async with asyncio.timeout(_DYING_S):
            return await reader.read(1) == b""
    except TimeoutError:
        return writer is None
    except (OSError, UnicodeError):
        return True
    finally:
        if writer is not None:
            writer.transport.abort()


async def was_asked_to_end(upstream: Upstream, patience_s: float = _LAST_BEAT_S) -> bool:
    """Return whether a dead engine's last heartbeat says that it was asked to end. Wait while one may come."""
    await asyncio.sleep(_QUARANTINE_S)
    for _ in range(round((patience_s - _QUARANTINE_S) / _LOOK_EVERY_S)):
        if not upstream.beats or upstream.last_word:
            break
        await asyncio.sleep(_LOOK_EVERY_S)
    return upstream.last_word == QUIT


async def until_answers(upstream: Upstream) -> None:
    """Wait until a silent engine responds again, or has left the table."""
    guard = Guard(log, f"the question whether {upstream.key} answers")
    while upstream.lost and not upstream.gone:
        await asyncio.sleep(_ASK_EVERY_S)
        with guard:
            if await _answers(upstream):
                upstream.mark_up()


async def _answers(upstream: Upstream) -> bool:
    try:
        answer = await ask(upstream.url, "/health", api_key=upstream.api_key, timeout_s=_ASK_EVERY_S, head_only=True)
    except (OSError, ValueError):
        return False
    return answer.status == 200
