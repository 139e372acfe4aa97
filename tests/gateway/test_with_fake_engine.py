"""Two fake engine processes behind the gateway, with the official client; one of them dies."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from fake_upstream import DEADLINE_S
from gateway_lab import API_KEY, EVEN, endpoint, table

from free_ports import free_port
from longboat.core.policy import Policy

MESSAGES: Any = [{"role": "user", "content": "Who rows the boat? 🚣"}]
NUM_TOKENS = 40


class EngineProcess:
    """One fake engine process."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        argv = ["-m", "longboat_fake", "--model", "tiny", "--port", str(self.port), "--itl-ms", "20"]
        env = {**os.environ, "LONGBOAT_ENGINE_API_KEY": API_KEY}
        self.process = await asyncio.create_subprocess_exec(sys.executable, *argv, env=env)
        async with asyncio.timeout(DEADLINE_S), httpx.AsyncClient() as client:
            while not await _serves(client, self.url):  # noqa: ASYNC110 it is another process
                await asyncio.sleep(0.05)

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


async def _serves(client: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await client.get(f"{url}/health")).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
async def engines() -> AsyncIterator[list[EngineProcess]]:
    made = [EngineProcess(), EngineProcess()]
    await asyncio.gather(*(engine.start() for engine in made))
    yield made
    for engine in made:
        await engine.kill()


async def spoken(client: openai.AsyncOpenAI, begun: asyncio.Event | None = None) -> str:
    stream = await client.chat.completions.create(
        model="tiny", messages=MESSAGES, stream=True, max_tokens=NUM_TOKENS, temperature=0
    )
    words = []
    async for part in stream:
        words.extend(choice.delta.content or "" for choice in part.choices)
        if begun is not None:
            begun.set()
    return "".join(words)


async def test_answers_are_the_engines_own_and_a_dead_engine_is_left_out(
    engines: list[EngineProcess], make_gateway: Any
) -> None:
    gateway = await make_gateway(policy=Policy(routing=EVEN))
    replicas = [endpoint(engine.url, f"r{i}") for i, engine in enumerate(engines)]
    gateway.state.table.offer("f", table(*replicas))
    url = f"http://127.0.0.1:{gateway.port}/v1"
    through = openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0, timeout=DEADLINE_S)
    direct = openai.AsyncOpenAI(base_url=f"{engines[0].url}/v1", api_key=API_KEY, timeout=DEADLINE_S)
    async with through, direct:
        expected = await spoken(direct)
        assert expected
        assert await asyncio.gather(*(spoken(through) for _ in range(4))) == [expected] * 4
        begun = [asyncio.Event() for _ in range(4)]
        running = [asyncio.create_task(spoken(through, each)) for each in begun]
        await asyncio.gather(*(asyncio.wait_for(each.wait(), DEADLINE_S) for each in begun))
        await engines[0].kill()
        ends = await asyncio.gather(*running, return_exceptions=True)
        assert ends.count(expected) == 2
        assert sum(isinstance(end, openai.APIError) for end in ends) == 2
        assert await asyncio.gather(*(spoken(through) for _ in range(4))) == [expected] * 4
