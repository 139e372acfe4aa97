"""Nothing is left of requests after faults, clients that leave, and reloads of table and policy, all at once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from fake_upstream import OK_JSON, STREAM_HEAD, Seen, chunk, event, until_closed
from gateway_lab import EVEN, RawClient, endpoint, eventually, post_bytes, push_policy, settled, table

from longboat.core.policy import Policy, QueuePolicy, ResumePolicy, RoutingRules
from longboat.gateway.process.server import Gateway

NUM_CLIENTS, NUM_TURNS = 10, 90
DEADLINE_S = 60.0
ANSWERED = ("whole", "stream", "cut", "hangs up", "fails", "no http", "slow")
"""What engines do with a request that a client waits for."""
POLICIES = [
    Policy(resume=ResumePolicy(wait_s=0), routing=routing, queue=queue)
    for routing, queue in itertools.product((EVEN, RoutingRules()), (QueuePolicy(), QueuePolicy(max_waiting=3)))
]


async def engine(seen: Seen) -> None:
    """Do what the request says."""
    match json.loads(seen.body)["user"]:
        case "stream":
            for part in (STREAM_HEAD, *(chunk(event(word)) for word in "abc"), b"0\r\n\r\n"):
                if not seen.writer.is_closing():
                    await seen.send(part)
                await asyncio.sleep(0.001)
        case "cut":
            await seen.send(STREAM_HEAD + chunk(event("a")))
            seen.writer.close()
        case "hangs up":
            seen.writer.transport.abort()
        case "fails":
            await seen.send(b"HTTP/1.1 500 Failed\r\ncontent-length: 2\r\n\r\n{}")
        case "no http":
            await seen.send(b"boat\r\n\r\n")
            seen.writer.close()
        case "silent":
            await until_closed(seen)
        case "slow":
            await asyncio.sleep(0.01)
            if not seen.writer.is_closing():
                await seen.send(OK_JSON)
        case _:
            await seen.send(OK_JSON)


def request(rng: random.Random, kind: str) -> bytes:
    body = {"model": rng.choice(("tiny",) * 9 + ("none",)), "messages": [], "user": kind}
    return post_bytes({**body, "stream": kind in ("stream", "cut")})


async def read_all(client: RawClient, num_answers: int) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # the gateway may cut it short
        for _ in range(num_answers):
            await client.response()


async def waits(client: RawClient, rng: random.Random) -> None:
    for _ in range(3):
        client.send(request(rng, rng.choice(ANSWERED)))
        await read_all(client, 1)


async def sends_ahead(client: RawClient, rng: random.Random) -> None:
    client.send(request(rng, "whole") + request(rng, rng.choice(ANSWERED)))
    await read_all(client, 2)


async def closes_its_side(client: RawClient, rng: random.Random) -> None:
    client.send(request(rng, rng.choice(ANSWERED)))
    client.writer.write_eof()
    await read_all(client, 1)


async def leaves(client: RawClient, rng: random.Random) -> None:
    client.send(request(rng, rng.choice((*ANSWERED, "silent"))))
    await asyncio.sleep(rng.choice((0.0, 0.002, 0.02)))


async def leaves_within_its_request(client: RawClient, rng: random.Random) -> None:
    whole = request(rng, "whole")
    client.send(whole[: rng.randrange(len(whole))])


async def speaks_no_http(client: RawClient, rng: random.Random) -> None:
    client.send(b"boat\r\n\r\n")
    await read_all(client, 1)


CLIENTS = (waits, waits, sends_ahead, closes_its_side, leaves, leaves, leaves_within_its_request, speaks_no_http)


async def one_client(gateway: Gateway, rng: random.Random) -> None:
    for _ in range(NUM_TURNS):
        client = await RawClient.to(gateway)
        await rng.choice(CLIENTS)(client, rng)
        rng.choice((client.writer.close, client.abort))()


async def reload(gateway: Gateway, urls: list[str], rng: random.Random) -> None:
    """Offer other tables and policies until cancelled."""
    for version in itertools.count(2):
        chosen = rng.sample(range(len(urls)), rng.randrange(1, len(urls) + 1))
        endpoints = [endpoint(urls[at], f"r{at}", ready=rng.random() < 0.9) for at in chosen]
        gateway.state.offer_table("e", table(*endpoints, version=version))
        push_policy(gateway, rng.choice(POLICIES))
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("seed", [1])
async def test_nothing_is_left_after_faults_and_reloads(
    seed: int, make_upstream: Callable[..., Any], make_gateway: Callable[..., Any]
) -> None:
    upstreams = [await make_upstream(engine) for _ in range(4)]
    gateway: Gateway = await make_gateway(*upstreams, max_outstanding=2)
    before = asyncio.all_tasks()
    reloads = asyncio.create_task(reload(gateway, [upstream.url for upstream in upstreams], random.Random(seed)))
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as clients:
        for number in range(NUM_CLIENTS):
            clients.create_task(one_client(gateway, random.Random(seed * 1000 + number)))
    reloads.cancel()
    state = gateway.state
    await eventually(lambda: not state.connections, "no client is connected")
    await eventually(lambda: state.held_bytes == state.in_flight == 0, "no request is held")
    snapshot = settled(gateway).metrics.snapshot(state.table.upstreams(), state)
    kept = {name: [row[name] for row in snapshot["series"]] for name in ("in_flight", "waiting", "preempted")}
    assert not any(map(any, kept.values())), kept
    assert not any(row["outstanding"] for row in snapshot["upstreams"])
    outcomes = {outcome for row in snapshot["series"] for outcome, count in row["outcomes"].items() if count}
    assert {"ok", "client_left", "engine_error"} <= outcomes, outcomes
    state.offer_table("e", table(version=1_000_000))  # ends what follows engines
    await eventually(lambda: not state.tasks, "no task of a request is left")
    await eventually(lambda: not others(before), "no task is left")


def others(before: set[asyncio.Task[Any]]) -> list[asyncio.Task[Any]]:
    """Return tasks of the gateway that were not there before."""
    return [task for task in asyncio.all_tasks() - before if "longboat/gateway" in repr(task)]
