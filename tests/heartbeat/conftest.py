"""A node's relay and two gangs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from relay_lab import Gang

from longboat.heartbeat.relay import Relay


@pytest.fixture
async def gangs() -> AsyncIterator[list[Gang]]:
    made = [Gang("a"), Gang("b")]
    for gang in made:
        await gang.door.open()
    yield made
    for gang in made:
        gang.door.close()


@pytest.fixture
async def relay(gangs: list[Gang]) -> AsyncIterator[Relay]:
    made = Relay("127.0.0.1")
    await made.open()
    made.watch({gang.key: gang.endpoint for gang in gangs})
    yield made
    made.close()
