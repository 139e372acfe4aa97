"""Documents that are made about once a second, however many people look, and named by a digest of their bytes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

__all__ = ("Section", "Sections")

_MAX_SECTIONS = 256


@dataclass(frozen=True)
class Section:
    """One document as bytes."""

    tag: str
    body: bytes


class Sections:
    """The newest documents, by name. A document is made when the first viewer asks for it."""

    def __init__(self, most: int = _MAX_SECTIONS) -> None:
        self._most = most
        # name → when it is too old, and the document
        self._made: dict[tuple[str, ...], tuple[float, asyncio.Future[Any]]] = {}

    async def get(
        self, name: tuple[str, ...], make: Callable[[], Awaitable[Any]], now_s: float, age_s: float = 1.0
    ) -> Section:
        """Return the section, made by ``make`` where it is older than ``age_s``. Raises what ``make`` raises."""
        made: Section = await self._shared(("section", *name), lambda: _section(make()), now_s, age_s)
        return made

    async def raw(
        self, name: tuple[str, ...], make: Callable[[], Awaitable[Any]], now_s: float, age_s: float = 1.0
    ) -> Any:
        """Return a value that several sections are made from."""
        return await self._shared(("raw", *name), make, now_s, age_s)

    def forget(self, name: tuple[str, ...]) -> None:
        """Let the next question make this value of ``raw`` again."""
        self._made.pop(("raw", *name), None)

    async def _shared(
        self, name: tuple[str, ...], make: Callable[[], Awaitable[Any]], now_s: float, age_s: float
    ) -> Any:
        until_s, future = self._made.get(name, (0.0, None))
        if future is None or now_s >= until_s or (future.done() and _failed(future)):
            self._make_room(now_s)
            future = asyncio.ensure_future(make())
            future.add_done_callback(_failed)  # where all who asked have gone, the failure counts as seen
            self._made[name] = (now_s + age_s, future)
        return await asyncio.shield(future)  # another viewer waits for it too

    def _make_room(self, now_s: float) -> None:
        """Drop what is too old; where that is not enough, drop what would be next."""
        kept = sorted((entry for entry in self._made.items() if now_s < entry[1][0]), key=lambda entry: entry[1][0])
        self._made = dict(kept[max(0, len(kept) - self._most + 1) :])


def _failed(future: asyncio.Future[Any]) -> bool:
    return future.cancelled() or future.exception() is not None


async def _section(making: Awaitable[Any]) -> Section:
    body = orjson.dumps(await making)
    return Section(hashlib.blake2b(body, digest_size=8).hexdigest(), body)
