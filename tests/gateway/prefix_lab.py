"""A small gateway for tests of the prefix feed: it names prompts, asks the index, and sends requests."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from gateway_lab import eventually

from longboat.core.states import Endpoint, EndpointTable
from longboat.gateway.api.body_fields import BodyKind
from longboat.gateway.api.prompt_blocks import prompt_blocks
from longboat.gateway.config import GatewayLimits
from longboat.gateway.http.message import Message, ask
from longboat.gateway.prefixes.feed import FeedState, follow_prefixes
from longboat.gateway.prefixes.frames import prefix_header
from longboat.gateway.upstreams.table import LiveTable
from longboat.gateway.upstreams.upstream import Upstream
from longboat.routing.policies.contract import EngineReport
from longboat.routing.prefixes.shared_index import SharedIndex

__all__ = ("PrefixLab", "chat")

KEY = "engine-key"


def chat(*texts: str, **more: Any) -> bytes:
    roles = ("system", "user", "assistant")
    messages = [{"role": roles[0 if not at else 1 + (at + 1) % 2], "content": text} for at, text in enumerate(texts)]
    return json.dumps({"model": "m", "messages": messages, "max_tokens": 4, "temperature": 0, **more}).encode()


def seed_of(body: bytes) -> bytes:
    document = json.loads(body)
    return f"{document['model']} {document.get('cache_salt')}".encode()


class PrefixLab:
    """One follower of the feeds of one or more engines."""

    def __init__(self, *urls: str, key: str = KEY, model: str = "m", names: bool = True) -> None:
        self.index = SharedIndex(1 << 20, 64)
        self.table = LiveTable(GatewayLimits())
        self.states: dict[str, FeedState] = {}
        self.reports: dict[str, EngineReport] = {}
        self.results: dict[int, tuple[int, int]] = {}  # tag → prompt tokens, cached tokens
        self._names = names
        self._key = key
        self._model = model
        self._tag = 0
        self._version = 0
        self._task: asyncio.Task[None] | None = None
        self.offer(*urls)

    def offer(self, *urls: str) -> None:
        """Put these engines into the table."""
        self._version += 1
        ends = [
            Endpoint(model=self._model, replica=f"r{at}", generation=1, url=url, api_key=self._key)
            for at, url in enumerate(urls)
        ]
        self.table.offer("e", EndpointTable(version=self._version, models=(self._model,), endpoints=tuple(ends)))

    async def __aenter__(self) -> PrefixLab:
        follow = follow_prefixes(self.table, self, names=self._names, states=self.states)
        self._task = asyncio.create_task(follow)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def named(self, upstream: Upstream, stored: bool, blocks: bytes) -> None:
        (self.index.place if stored else self.index.remove)(self.index.slot_of(upstream.key), blocks)

    async def forgotten(self, upstream: Upstream) -> None:
        self.index.clear(self.index.slot_of(upstream.key))
        await asyncio.to_thread(self.index.tidy)

    def reported(self, upstream: Upstream, report: EngineReport) -> None:
        self.reports[upstream.key] = report

    def found(self, upstream: Upstream, tag: int, prompt_tokens: int, cached_tokens: int) -> None:
        self.results[tag] = (prompt_tokens, cached_tokens)

    @property
    def state(self) -> FeedState:
        (state,) = self.states.values()
        return state

    async def live(self) -> None:
        await eventually(lambda: self.states and all(s.is_live for s in self.states.values()), "the feeds are heard")

    def depth(self, body: bytes) -> tuple[int, int]:
        """Return how many of the prompt's leading blocks the first engine holds, and how many it has."""
        blocks, _ = prompt_blocks(body, BodyKind.CHAT, seed_of(body))
        (upstream, *_) = self.table.upstreams()
        slot = self.index.slot_of(upstream.key)
        return self.index.depths(blocks, slot + 1)[slot], len(blocks) // 8

    async def send(self, body: bytes, **more: str) -> tuple[int, int, str]:
        """Send a request to the first engine. Return its prompt tokens, its cached tokens and its answer.

        more: further headers
        """
        tag, answer = await self.post(body, **more)
        await eventually(lambda: tag in self.results, "the engine tells what it found")
        if answer.headers["content-type"].startswith("text/event-stream"):
            return *self.results[tag], answer.body.decode()
        return *self.results[tag], str(json.loads(answer.body)["choices"][0]["message"]["content"] or "")

    async def post(self, body: bytes, **more: str) -> tuple[int, Message]:
        """Send a request to the first engine. Return its tag and its answer; its result may come later, or never."""
        blocks, ends = prompt_blocks(body, BodyKind.CHAT, seed_of(body))
        (upstream, *_) = self.table.upstreams()
        self._tag += 1
        tag = self._tag
        line = prefix_header(tag, self.depth(body)[0], blocks, ends).decode().strip()
        name, _, value = line.partition(": ")
        headers = {name: value, "content-type": "application/json", **more}
        answer = await ask(
            upstream.url, "/v1/chat/completions", method="POST", body=body, api_key=upstream.api_key,
            headers=headers, timeout_s=60,
        )  # fmt: skip
        assert answer.status == 200, answer.body
        return tag, answer
