"""The prefixes of this process's engine, for the middleware, the patches of vLLM and the reader of its events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from typing import Any

from longboat_vllm.prefixes.book import PrefixBook
from longboat_vllm.prefixes.feed import read_query
from longboat_vllm.prefixes.header import PREFIX_HEADER, NamedPrompt, read_prefix_header

__all__ = ("PREFIXES", "Prefixes", "names_in")

Message = MutableMapping[str, Any]
_NAMED: ContextVar[list[NamedPrompt] | None] = ContextVar("longboat_named_prompt", default=None)
_HEADERS = [(b"content-type", b"application/octet-stream"), (b"cache-control", b"no-store")]


def names_in(headers: Iterable[tuple[bytes, bytes]]) -> NamedPrompt | None:
    """Return how a request's header names its prompt; None where there is no such header. Raise ValueError."""
    value = next((value for name, value in headers if name == PREFIX_HEADER), None)
    if value is None:
        return None
    try:
        return read_prefix_header(value)
    except ValueError as error:
        raise ValueError(f"{PREFIX_HEADER.decode()}: {error}") from error


class Prefixes:
    """What the API server of one engine knows of prefixes."""

    def __init__(self) -> None:
        self.book: PrefixBook | None = None  # None: this engine tells nothing of prefixes
        self._start: Callable[[], None] | None = None  # begins to read the engine's events, in the running loop

    def offer(self, book: PrefixBook, start: Callable[[], None]) -> None:
        """Take the engine's book. start: called once, when the book is first needed"""
        self.book, self._start = book, start

    @contextmanager
    def naming(self, named: NamedPrompt | None) -> Iterator[None]:
        """Keep the names of the current HTTP request's prompt, for the engine's requests that come of it."""
        if named is None or self.book is None:
            yield
            return
        self.begin()
        token = _NAMED.set([named])
        try:
            yield
        finally:
            _NAMED.reset(token)

    def take_named(self) -> NamedPrompt | None:
        """Return the names of the current HTTP request's prompt, once: its further choices have the same prompt."""
        named = _NAMED.get()
        return named.pop() if named else None

    async def tell(
        self, book: PrefixBook, scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:  # fmt: skip
        """Answer a subscription, until its gateway goes away or the server stops, which waits for all responses."""
        self.begin()
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        server = getattr(getattr(scope.get("app"), "state", None), "server", None)
        leaving = asyncio.ensure_future(_left(receive))
        try:
            async with aclosing(book.feed.frames(*read_query(scope.get("query_string", b"")))) as frames:
                async for data in frames:
                    if leaving.done() or getattr(server, "should_exit", False):
                        break
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            leaving.cancel()

    def begin(self) -> None:
        """Read the engine's events from now on, in the running loop."""
        start, self._start = self._start, None
        if start is not None:
            start()


async def _left(receive: Callable[[], Awaitable[Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


PREFIXES = Prefixes()
"""The prefixes of this process's engine."""
