"""A node's daemon as the console needs it: logs, weights, keys and adapters, without a cluster."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from longboat.core.policy import KeyRecord, Policy

__all__ = ("Daemon",)

GIB = 1 << 30


class Daemon:
    """Answers at a socket, and changes the gateway's policy as a controller does."""

    def __init__(self, policy: Policy, push: Callable[[Policy], None], lines: str = "") -> None:
        self.policy = policy
        self.push = push
        self.kills: dict[str, Callable[[], object]] = {}  # replica → what ends its engine
        self.log = lines or "".join(f"INFO 11-23 17:0{n % 10}:12 [loggers.py:123] {text}\n" for n, text in _LINES)

    @asynccontextmanager
    async def at(self, path: Path) -> AsyncIterator[None]:
        async with await asyncio.start_unix_server(self._serve, path):
            yield

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        question = json.loads(await reader.readline())
        writer.write(json.dumps({"value": self._answer(question["ask"], question["args"])}).encode())
        await writer.drain()
        writer.close()

    def _answer(self, ask: str, args: list[Any]) -> Any:
        if ask == "change_fleet":
            return self._change(args[0])
        if args[1] == "list_weights":
            return [
                _stored("qwen3-32b-9f2c1a", "hf:Qwen/Qwen3-32B", 61),
                _stored("llama-3.1-8b-77d0", "llama-3.1-8b", 15),
            ]
        offset = args[5]
        return [len(self.log), self.log if offset is None else self.log[offset:]]

    def _change(self, order: dict[str, Any]) -> dict[str, Any]:
        if "add_key" in order:
            record = KeyRecord(**order["add_key"])
            return self._keys((*self.policy.keys, record), record.key_id)
        if "remove_key" in order:
            left = tuple(key for key in self.policy.keys if key.key_id != order["remove_key"])
            return self._keys(left, order["remove_key"])
        if "kill" in order:
            self.kills[order["kill"]]()
            return {"killed": {"model": "m", "replica": order["kill"], "hostname": "host-1", "processes": 1}}
        return {"status": 400, "error": "there is no folder here", "hint": "put it on every node"}

    def _keys(self, keys: tuple[KeyRecord, ...], key_id: str) -> dict[str, Any]:
        self.policy = dataclasses.replace(self.policy, keys=keys)
        self.push(self.policy)
        return {"key": {"id": key_id, "gateways": 4, "informed": 4}}


def _stored(key: str, source: str, gib: int) -> dict[str, Any]:
    size = gib * GIB
    whole = gib > 20
    have = size if whole else size * 6 // 10
    facts = {"total_bytes": size, "have_bytes": have, "is_whole": whole, "in_use": whole, "used_at_s": time.time()}
    return {"key": key, "source": source, **facts}


_LINES = (
    (1, "Starting to load model Qwen/Qwen3-32B..."),
    (2, "Loading weights took 21.04 seconds"),
    (2, "Model loading took 61.03 GiB memory and 23.1 seconds"),
    (3, "GPU KV cache size: 656,000 tokens"),
    (4, "Application startup complete."),
    (5, "Engine 000: Avg prompt throughput: 812.4 tokens/s, Running: 5 reqs, Waiting: 0 reqs, KV cache usage: 7.9%"),
)
