"""What the conformance suite talks to: places with clients for them, and a gateway in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx
import openai
import uvloop
from engine_processes import EngineProcess
from gateway_lab import API_KEY, config, endpoint, table

from engines.fake_process import PLAIN
from longboat.gateway.process.server import Gateway

__all__ = ("DEADLINE_S", "Engines", "Place", "Target", "gateway_before")

DEADLINE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Engines:
    """One engine that generates, one that pools, one that takes audio."""

    kind: str
    chat: EngineProcess
    pooling: EngineProcess
    audio: EngineProcess | None  # None: vLLM's environment lacks what decodes it

    def all(self) -> list[EngineProcess]:
        return list({engine.url: engine for engine in (self.chat, self.pooling, self.audio) if engine}.values())


@dataclass(frozen=True, kw_only=True)
class Place:
    """One address and the model to ask for there."""

    url: str
    model: str

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {API_KEY}"}

    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=API_KEY, max_retries=0, timeout=DEADLINE_S)

    def anthropic(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(base_url=self.url, auth_token=API_KEY, max_retries=0, timeout=DEADLINE_S)

    def post(self, path: str, **body: Any) -> httpx.Response:
        document = {"model": self.model, **body}
        return httpx.post(self.url + path, json=document, headers=self.headers, timeout=DEADLINE_S, verify=PLAIN)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=self.headers, timeout=DEADLINE_S, verify=PLAIN)


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a test talks to. engine: ``fake`` or ``vllm``; through_gateway: else straight to the engines."""

    engine: str
    through_gateway: bool
    chat: Place
    pooling: Place
    audio: Place | None


@contextmanager
def gateway_before(*engines: EngineProcess) -> Iterator[str]:
    """A gateway in a thread of its own, with one model for each engine; its address."""
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    gateway = asyncio.run_coroutine_threadsafe(_started(engines), loop).result(DEADLINE_S)
    try:
        yield f"http://127.0.0.1:{gateway.port}"
    finally:
        asyncio.run_coroutine_threadsafe(_stopped(gateway), loop).result(DEADLINE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE_S)


async def _started(engines: tuple[EngineProcess, ...]) -> Gateway:
    gateway = Gateway(config())
    await gateway.start()
    endpoints = [endpoint(engine.url, f"r{index}", engine.model) for index, engine in enumerate(engines)]
    gateway.state.offer_table("e", table(*endpoints, models=tuple(engine.model for engine in engines)))
    return gateway


async def _stopped(gateway: Gateway) -> None:
    gateway.stop(0.0)
    await gateway.stopped.wait()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0)
