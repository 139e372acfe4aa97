"""The ranks of a fake gang: how they meet, and how a lost rank stops generation without a message.

The head pings every rank and makes tokens only while all answer, as an engine whose ranks compute together. Like a
real engine it reports nothing when a rank is lost, and a rank reports nothing when the head is lost: tokens stop.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

__all__ = ("Gang", "follow", "lead")

_PING_S = 0.1
_SILENCE_S = 0.5
_RETRY_S = 0.05
_MAX_LINE_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """The head's side of a complete gang; it works as long as a reference to it exists."""

    server: asyncio.Server
    tasks: tuple[asyncio.Task[None], ...]


async def lead(host: str, port: int, num_ranks: int, gate: asyncio.Event) -> Gang:
    """Wait until ``num_ranks`` - 1 others have joined; then hold ``gate`` open only while all of them answer."""
    joined: dict[int, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}
    complete = asyncio.Event()

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rank = int(await reader.readline())
        joined[rank] = (reader, writer)
        print(f"phase=loading rank {rank} joined, {num_ranks - 1 - len(joined)} missing", flush=True)
        if len(joined) == num_ranks - 1:
            complete.set()

    server = await asyncio.start_server(welcome, host, port, limit=_MAX_LINE_BYTES)
    await complete.wait()
    heard_s = dict.fromkeys(joined, time.monotonic())
    tasks = [asyncio.create_task(_watch(rank, *joined[rank], heard_s)) for rank in joined]
    return Gang(server=server, tasks=(*tasks, asyncio.create_task(_hold(gate, heard_s))))


async def _watch(
    rank: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, heard_s: dict[int, float]
) -> None:
    """Ping one rank as long as its connection lasts."""
    try:
        while True:
            writer.write(b"ping\n")
            await writer.drain()
            if not await reader.readline():
                break
            heard_s[rank] = time.monotonic()
            await asyncio.sleep(_PING_S)
    except OSError:
        pass
    heard_s[rank] = float("-inf")


async def _hold(gate: asyncio.Event, heard_s: dict[int, float]) -> None:
    while True:
        if min(heard_s.values()) >= time.monotonic() - _SILENCE_S:
            gate.set()
        else:
            gate.clear()
        await asyncio.sleep(_PING_S / 2)


async def follow(host: str, port: int, node_rank: int) -> None:
    """Join the head (retry until it listens) and answer its pings; stay when it goes. Never returns."""
    reader, writer = await _join(host, port, node_rank)
    print("phase=warming joined the head", flush=True)
    try:
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
    except OSError:
        pass
    await asyncio.Event().wait()


async def _join(host: str, port: int, node_rank: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    while True:
        try:
            reader, writer = await asyncio.open_connection(host, port, limit=_MAX_LINE_BYTES)
        except OSError:
            await asyncio.sleep(_RETRY_S)
            continue
        writer.write(b"%d\n" % node_rank)
        await writer.drain()
        return reader, writer
