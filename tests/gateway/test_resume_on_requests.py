"""Streams whose engine dies go on from another, and the client cannot tell."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from engine_lab import REQUESTS, Engine, Json, Stream, streamed
from gateway_lab import table

from longboat.core.policy import Policy, ResumePolicy
from longboat.gateway.server import Gateway

UNSEEDED = Policy(resume=ResumePolicy(seeds=False))
"""The fake engine's answer is then the same each time."""


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
def mortals() -> Iterator[Callable[..., Engine]]:
    """Makes engines that a test may kill."""
    made: list[Engine] = []

    def make(*options: str) -> Engine:
        engine = Engine(options=options or ("--itl-ms", "20"))
        engine.start()
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.signal(signal.SIGCONT)
        engine.kill()


async def fleet(make_gateway: Any, engines: list[Engine], *changes: Json, policy: Policy | None = None) -> Gateway:
    """A gateway before these engines. changes: of their endpoints, one after the other"""
    gateway: Gateway = await make_gateway(policy=policy or UNSEEDED)
    values = [*changes, *({} for _ in engines)]
    endpoints = [engine.endpoint(f"r{i}", **values[i]) for i, engine in enumerate(engines)]
    gateway.state.offer_table("f", table(*endpoints))
    return gateway


def resumes(gateway: Gateway) -> dict[tuple[str, str], int]:
    return {(why, result): count for why, result, count in gateway.state.metrics.snapshot()["resumes"]}


def same(broken: Stream, whole: Stream) -> None:
    assert (broken.status, broken.done) == (200, True)
    assert len(broken.ids) == len(whole.ids)
    assert broken.meaning() == whole.meaning()


@pytest.mark.parametrize("name", REQUESTS)
async def test_answer_that_breaks_twice_reads_as_unbroken(name: str, pair: list[Engine], make_gateway: Any) -> None:
    path, document = REQUESTS[name]
    gateway = await fleet(make_gateway, pair, policy=UNSEEDED)
    whole = await streamed(gateway, path, document)
    await pair[0].fault("break", after_tokens=2)
    await pair[1].fault("break", after_tokens=5)
    same(await streamed(gateway, path, document), whole)
    assert resumes(gateway).get(("lost", "resumed"), 0) >= 1
    await asyncio.gather(*(engine.fault("none") for engine in pair))
