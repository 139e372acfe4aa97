"""Requests for a model that sleeps: the controller hears of them at once, and they are answered when it is ready."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from gateway_lab import RawClient, Response, endpoint, table
from test_gateway_process import ASK, Start, start

from longboat.core.states import Asleep
from longboat.core.table_changes import TableUpdate
from longboat.gateway.upstreams.pool import Wakes
from longboat.gateway.upstreams.table_document import decode_update, encode_update

__all__ = ("start",)  # the fixture

ELASTIC = {"tiny": {"minimum": 0.0, "maximum": 2.0}}
SLEEPING = replace(table(version=1), asleep={"tiny": Asleep(cold_start_s=2.5)}, scaling=ELASTIC)


async def asked(port: int, headers: str = "", **more: Any) -> Response:
    client = await RawClient.to(port)
    response = await client.post({**ASK, **more}, headers=headers)
    client.abort()
    return response


@pytest.mark.parametrize("processes", [1, 2])
async def test_request_wakes_the_model_and_is_answered_when_it_is_ready(
    start: Start, make_upstream: Any, processes: int
) -> None:
    running = await start(processes=processes)
    await running.control.put_table("e", SLEEPING)
    waking = asyncio.ensure_future(running.control.wakes())
    request = asyncio.ensure_future(asked(running.port))
    assert await waking == ["tiny"]
    reported = (await running.control.state())["model_counts"].values()
    counts = {
        name: sum(process.get("tiny", {}).get(name, 0) for process in reported)
        for name in ("parked", "in_flight", "arrived")
    }
    assert (counts["parked"], counts["in_flight"], counts["arrived"]) == (1, 1, 1)
    assert not request.done()
    await running.control.put_table("e", table(endpoint(await make_upstream()), version=2))
    assert (await request).status == 200


async def test_request_that_cannot_wait_wakes_the_model_too(start: Start) -> None:
    running = await start(processes=1)
    await running.control.put_table("e", SLEEPING)
    response = await asked(running.port, headers="x-request-timeout: 1\r\n")
    assert (response.status, response.code, response.headers["retry-after"]) == (503, "model_starting", "3")
    assert await running.control.wakes() == ["tiny"]


async def test_model_is_woken_though_an_earlier_caller_has_died() -> None:
    wakes = Wakes()
    calls = [asyncio.ensure_future(wakes.wait(20.0)) for _ in range(2)]
    await asyncio.sleep(0)
    wakes.ask("tiny")
    assert await asyncio.gather(*calls) == [[], ["tiny"]]


async def test_paused_model_is_not_woken(start: Start) -> None:
    running = await start(processes=1)
    await running.control.put_table("e", replace(SLEEPING, asleep={"tiny": Asleep(paused=True)}))
    response = await asked(running.port)
    assert (response.status, response.code) == (503, "model_paused")


def test_how_models_sleep_is_part_of_the_table() -> None:
    asleep = {"tiny": Asleep(cold_start_s=2.5, ordered_s=7.0), "b": Asleep(paused=True)}
    table = replace(SLEEPING, asleep=asleep, scaling={"tiny": {"wanted": 1.0}})
    sent = TableUpdate(epoch="e", number=1, table=table)
    assert decode_update(encode_update(sent)) == sent


def test_start_should_be_over_after_its_measured_seconds() -> None:
    assert Asleep().ready_in_s(100.0) is None
    assert Asleep(cold_start_s=4.0).ready_in_s(100.0) == 4.0
    assert Asleep(cold_start_s=4.0, ordered_s=99.0).ready_in_s(100.0) == 3.0
    assert Asleep(cold_start_s=4.0, ordered_s=90.0).ready_in_s(100.0) == 0.0
