"""Clients that send without end, or hardly at all: a quick answer, and memory that stays where it was."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import pytest
from arena import DEADLINE_S, Arena, check_nothing_is_left, statuses_in

MIB = 1 << 20
BLOCK = b"x" * 65536
POST = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.fixture(scope="module")
def roomy() -> Iterator[Arena]:
    """A gateway with the product's own limits of bytes."""
    made = Arena(max_head_bytes=65536, max_body_bytes=32 * MIB, max_held_bytes=512 * MIB, head_timeout_s=1.0)
    yield made
    made.close()


async def pour(arena: Arena, head: bytes, blocks: Iterator[bytes], total_bytes: int) -> tuple[int, bytes]:
    """Send until the gateway answers or everything is out; how much went, and the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", arena.gateway.port)
    sent, answer = 0, asyncio.ensure_future(reader.readuntil(b"\r\n\r\n"))
    with contextlib.suppress(ConnectionError):
        writer.write(head)
        while sent < total_bytes and not answer.done():
            block = next(blocks)
            writer.write(block)
            await asyncio.wait_for(writer.drain(), DEADLINE_S)
            sent += len(block)
    head_of_answer = await asyncio.wait_for(answer, DEADLINE_S)
    writer.transport.abort()
    return sent, head_of_answer


@pytest.mark.parametrize(
    ("head", "block"),
    [
        (POST + b"content-length: 1073741824\r\n\r\n", BLOCK),
        (POST + b"transfer-encoding: chunked\r\n\r\n", b"10000\r\n" + BLOCK + b"\r\n"),
        (POST + b"transfer-encoding: chunked\r\n\r\n40000000\r\n", BLOCK),
    ],
    ids=["length", "chunks", "one-chunk"],
)
def test_body_of_a_gigabyte_is_a_413_at_once(roomy: Arena, head: bytes, block: bytes) -> None:
    before = rss_bytes()
    sent, answer = roomy.run(pour(roomy, head, repeat(block), 1024 * MIB))
    assert statuses_in(answer + b"\r\n\r\n") == [413]
    assert sent < 100 * MIB
    assert rss_bytes() - before < 150 * MIB


def test_many_great_bodies_share_one_budget() -> None:
    """Forty bodies of 30 MiB may not cost more than the budget for all."""
    arena = Arena(max_head_bytes=65536, max_body_bytes=32 * MIB, max_held_bytes=64 * MIB)
    before = rss_bytes()

    async def all_at_once() -> list[int]:
        head = POST + b"transfer-encoding: chunked\r\n\r\n"
        block = b"10000\r\n" + BLOCK + b"\r\n"
        answers = await asyncio.gather(
            *(pour(arena, head, repeat(block), 60 * MIB) for _ in range(40)), return_exceptions=True
        )
        return [status for one in answers if isinstance(one, tuple) for status in statuses_in(one[1] + b"\r\n\r\n")]

    statuses = arena.run(all_at_once())
    assert statuses
    assert set(statuses) <= {413, 503}
    assert rss_bytes() - before < 250 * MIB
    arena.close()


@pytest.mark.parametrize(
    "start",
    [b"GET /", b"GET /livez HTTP/1.1\r\nhost: x\r\nx: ", b"GET /livez HTTP/1.1\r\nhost: x\r\n"],
    ids=["target", "value", "lines"],
)
def test_head_without_end_is_a_431(roomy: Arena, start: bytes) -> None:
    before = rss_bytes()
    block = b"a: b\r\n" * 1000 if start.endswith(b"\r\n") else BLOCK
    sent, answer = roomy.run(pour(roomy, start, repeat(block), 256 * MIB))
    assert statuses_in(answer + b"\r\n\r\n") in ([431], [400])
    assert sent < 32 * MIB
    assert rss_bytes() - before < 64 * MIB


def test_client_that_asks_and_never_reads_is_not_read_any_more(roomy: Arena) -> None:
    async def ask_on() -> int:
        _reader, writer = await asyncio.open_connection("127.0.0.1", roomy.gateway.port, limit=1024)
        block, sent = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" * 20, 0
        with contextlib.suppress(ConnectionError, TimeoutError):
            while sent < 64 * MIB:
                writer.write(block)
                sent += len(block)
                await asyncio.wait_for(writer.drain(), 2.0)
        writer.transport.abort()
        return sent

    before = rss_bytes()
    assert roomy.run(ask_on()) < 64 * MIB
    assert rss_bytes() - before < 64 * MIB


def test_sender_of_single_bytes_is_a_408(roomy: Arena) -> None:
    async def drip() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", roomy.gateway.port)
        answer = asyncio.ensure_future(reader.read())
        head = b"GET /livez HTTP/1.1\r\nhost: x\r\nx-slow: "
        with contextlib.suppress(ConnectionError):
            for byte in head + b"a" * 4000:
                writer.write(bytes([byte]))
                if answer.done():
                    break
                await asyncio.sleep(0.05)
        writer.close()
        return await asyncio.wait_for(answer, DEADLINE_S)

    assert statuses_in(roomy.run(drip())) == [408]


def test_nothing_is_left_after_all_that(roomy: Arena) -> None:
    check_nothing_is_left(roomy, roomy.play([b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"], answers=1))
