"""KV events of the fake engine in vLLM's format over ZeroMQ; needs the extra ``kv-events`` (pyzmq, msgpack)."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any

from longboat.core.errors import UserInputError
from longboat_fake.engine.blocks import BlockStored, KvEvent

__all__ = ("Publisher", "open_publisher")

_NUM_KEPT = 10_000
_NUM_WAITING = 100_000
_END = (-1).to_bytes(8, "big", signed=True)


class Publisher:
    """A publisher of events on a PUB socket, which replays the newest batches on a ROUTER socket on request."""

    def __init__(self, zmq: Any, packb: Any, endpoint: str, topic: str = "") -> None:
        context = zmq.Context.instance()
        self._packb = packb
        self._topic = topic.encode()
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=_NUM_KEPT)
        self._next = 0
        self._pub = context.socket(zmq.PUB)
        self._pub.set_hwm(_NUM_WAITING)
        self._pub.bind(endpoint)
        self._replay = context.socket(zmq.ROUTER)
        self._replay.bind(endpoint.rpartition(":")[0] + ":0" if endpoint.startswith("tcp://") else endpoint + ".replay")
        self._endpoint = _bound(self._pub, zmq)
        self._replay_endpoint = _bound(self._replay, zmq)
        self._again = zmq.Again
        self._noblock = zmq.NOBLOCK
        self._task = asyncio.get_running_loop().create_task(self._serve_replays())

    def source(self) -> dict[str, object]:
        """Describe this publisher, for ``/kv_event_sources``."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self._endpoint,
            "replay_endpoint": self._replay_endpoint,
            "buffer_steps": _NUM_KEPT,
            "hwm": _NUM_WAITING,
            "max_queue_size": _NUM_WAITING,
            "topic": self._topic.decode(),
        }

    def publish(self, event: KvEvent) -> None:
        """Send one event as one batch."""
        payload: bytes = self._packb([time.time(), [_as_map(event)], 0])
        self._kept.append((self._next, payload))
        self._pub.send_multipart((self._topic, self._next.to_bytes(8, "big"), payload))
        self._next += 1

    async def _serve_replays(self) -> None:
        while True:
            try:
                request = self._replay.recv_multipart(self._noblock)
            except self._again:
                await asyncio.sleep(0.02)
                continue
            if len(request) == 3:
                self._answer(request[0], int.from_bytes(request[2], "big"))

    def _answer(self, client: bytes, start: int) -> None:
        for sequence, payload in self._kept:
            if sequence >= start:
                self._replay.send_multipart((client, b"", self._topic, sequence.to_bytes(8, "big"), payload))
        self._replay.send_multipart((client, b"", b"", _END, b""))


def _bound(socket: Any, zmq: Any) -> str:
    endpoint: str = socket.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0")
    return endpoint


def _as_map(event: KvEvent) -> dict[str, object]:
    if isinstance(event, BlockStored):
        return {
            "type": "BlockStored",
            "block_hashes": list(event.hashes),
            "parent_block_hash": event.parent,
            "token_ids": list(event.token_ids),
            "block_size": event.block_tokens,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None] * len(event.hashes),
            "group_idx": 0,
        }
    return {"type": "BlockRemoved", "block_hashes": list(event.hashes), "medium": "GPU", "group_idx": 0}


def open_publisher(endpoint: str) -> Publisher:
    """Bind a publisher to ``endpoint`` (``tcp://*:0`` takes a free port).

    Raises UserInputError where the libraries are not installed.
    """
    try:
        import msgpack  # type: ignore[import-not-found,import-untyped,unused-ignore]
        import zmq  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise UserInputError(
            f"--kv-events needs the package {error.name}, which is not installed",
            hint="pip install 'longboat[kv-events]', or start without --kv-events",
        ) from error
    return Publisher(zmq, msgpack.packb, endpoint)
