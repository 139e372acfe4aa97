"""Fixtures of the gateway's tests: upstreams and gateways that end with their test, on the production loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import uvloop
from engine_lab import Engine
from fake_upstream import FakeUpstream, Script, answer_json
from gateway_lab import RawClient, started_gateway

from longboat.gateway.process.server import Gateway

MakeUpstream = Callable[..., Awaitable[FakeUpstream]]
MakeGateway = Callable[..., Awaitable[Gateway]]
Connect = Callable[[Gateway], Awaitable[RawClient]]


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Engine]]:
    """Two engines that no test kills."""
    made = [Engine(), Engine()]
    for engine in made:
        engine.start()
    yield made
    for engine in made:
        engine.kill()


@pytest.fixture
async def make_upstream() -> AsyncIterator[MakeUpstream]:
    made: list[FakeUpstream] = []

    async def make(script: Script = answer_json) -> FakeUpstream:
        upstream = FakeUpstream(script)
        await upstream.start()
        made.append(upstream)
        return upstream

    yield make
    for upstream in made:
        upstream.close()


@pytest.fixture
async def make_gateway() -> AsyncIterator[MakeGateway]:
    made: list[Gateway] = []

    async def make(*upstreams: FakeUpstream | str, **options: Any) -> Gateway:
        gateway = await started_gateway(*upstreams, **options)
        made.append(gateway)
        return gateway

    yield make
    for gateway in made:
        gateway.stop(0.0)
        await gateway.stopped.wait()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    made: list[RawClient] = []

    async def to(gateway: Gateway) -> RawClient:
        client = await RawClient.to(gateway)
        made.append(client)
        return client

    yield to
    for client in made:
        client.abort()
