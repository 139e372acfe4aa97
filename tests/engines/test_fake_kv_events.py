"""Tests that the fake engine's KV events on the wire have vLLM's frames, numbers and replay."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgpack  # type: ignore[import-untyped,unused-ignore]
import pytest
import zmq

from engines.fake_process import FakeProcess, fake_engine
from longboat_fake.engine.blocks import block_hashes

BLOCK_TOKENS = 4
DEADLINE_MS = 10_000
END = b"\xff" * 8


@pytest.fixture
def engine() -> Iterator[FakeProcess]:
    with fake_engine("--kv-events", "tcp://127.0.0.1:0", "--block-size", str(BLOCK_TOKENS)) as started:
        yield started


def _source(engine: FakeProcess) -> dict[str, Any]:
    sources: dict[str, dict[str, Any]] = httpx.get(f"{engine.url}/kv_event_sources", timeout=5).json()
    assert list(sources) == ["0"]
    return sources["0"]


def _complete(engine: FakeProcess, prompt: list[int], max_tokens: int = 1) -> tuple[int, ...]:
    """Return prompt and response as token ids."""
    body = {"model": "m", "prompt": prompt, "max_tokens": max_tokens, "return_token_ids": True}
    answer = httpx.post(f"{engine.url}/v1/completions", json=body, timeout=20).json()
    return (*prompt, *answer["choices"][0]["token_ids"])


@contextmanager
def _socket(kind: int, endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, DEADLINE_MS)
        if kind == zmq.SUB:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(endpoint)
        yield socket


def _replayed(engine: FakeProcess, start: int) -> dict[int, Any]:
    """Return the batches from number ``start`` on, as the replay socket gives them."""
    batches: dict[int, Any] = {}
    with _socket(zmq.DEALER, _source(engine)["replay_endpoint"]) as socket:
        socket.send_multipart([b"", start.to_bytes(8, "big")])
        while True:
            empty, topic, sequence, payload = socket.recv_multipart()
            assert (empty, topic) == (b"", b"")
            if sequence == END:
                assert payload == b""
                return batches
            batches[int.from_bytes(sequence, "big")] = msgpack.unpackb(payload)


def _events(engine: FakeProcess, start: int = 0) -> list[dict[str, Any]]:
    return [event for batch in _replayed(engine, start).values() for event in batch[1]]


def _tell_something_until_heard(engine: FakeProcess, socket: zmq.Socket[bytes]) -> int:
    """Publish until the subscription is heard, and return the number of the last batch.

    A subscription reaches its publisher some time after it was made.
    """
    end_s = time.monotonic() + DEADLINE_MS / 1e3
    heard = -1
    for number in range(1_000_000):
        assert time.monotonic() < end_s, "no event came"
        _complete(engine, [10_000 + number] * BLOCK_TOKENS)
        while socket.poll(50):
            heard = int.from_bytes(socket.recv_multipart()[1], "big")
        if heard == number:
            return heard
    raise AssertionError


def test_sources_tell_the_bound_endpoints(engine: FakeProcess) -> None:
    source = _source(engine)
    endpoints = [source["endpoint"], source["replay_endpoint"]]
    assert (source["enable_kv_cache_events"], source["publisher"], source["topic"]) == (True, "zmq", "")
    assert all(endpoint.startswith("tcp://127.0.0.1:") for endpoint in endpoints)
    assert len(set(endpoints)) == 2
    assert not any(endpoint.endswith(":0") for endpoint in endpoints)


def test_subscriber_gets_topic_number_and_batch(engine: FakeProcess) -> None:
    with _socket(zmq.SUB, _source(engine)["endpoint"]) as socket:
        last = _tell_something_until_heard(engine, socket)
        prompt = list(range(2 * BLOCK_TOKENS))
        before_s = time.time()
        _complete(engine, prompt)
        topic, sequence, payload = socket.recv_multipart()
    time_s, events, rank = msgpack.unpackb(payload)
    assert (topic, int.from_bytes(sequence, "big"), len(sequence)) == (b"", last + 1, 8)
    assert before_s <= time_s <= time.time()
    assert rank == 0
    assert events == [
        {
            "type": "BlockStored",
            "block_hashes": list(block_hashes(prompt, BLOCK_TOKENS)),
            "parent_block_hash": None,
            "token_ids": prompt,
            "block_size": BLOCK_TOKENS,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
            "extra_keys": [None, None],
            "group_idx": 0,
        }
    ]


def test_blocks_of_the_answer_hang_on_those_of_the_prompt(engine: FakeProcess) -> None:
    whole = _complete(engine, list(range(6)), max_tokens=7)
    hashes = block_hashes(whole, BLOCK_TOKENS)
    of_prompt, of_answer = _events(engine)
    assert (of_prompt["parent_block_hash"], of_prompt["block_hashes"]) == (None, [hashes[0]])
    assert (of_answer["parent_block_hash"], of_answer["block_hashes"]) == (hashes[0], list(hashes[1:]))
    assert of_answer["token_ids"] == list(whole[BLOCK_TOKENS : 3 * BLOCK_TOKENS])


def test_a_repeat_sends_nothing(engine: FakeProcess) -> None:
    prompt = list(range(9))
    _complete(engine, prompt, max_tokens=9)
    told = _events(engine)
    _complete(engine, prompt, max_tokens=9)
    assert _events(engine) == told


def test_evicted_blocks_are_told_as_removed() -> None:
    flags = ("--kv-events", "tcp://127.0.0.1:0", "--block-size", str(BLOCK_TOKENS), "--kv-blocks", "4")
    with fake_engine(*flags) as engine:
        first, second = [1] * 3 * BLOCK_TOKENS, [2] * 3 * BLOCK_TOKENS
        _complete(engine, first)
        _complete(engine, second)
        stored: set[bytes] = set()
        for event in _events(engine):
            if event["type"] == "BlockStored":
                stored.update(event["block_hashes"])
            else:
                assert event == {
                    "type": "BlockRemoved",
                    "block_hashes": event["block_hashes"],
                    "medium": "GPU",
                    "group_idx": 0,
                }
                assert stored >= set(event["block_hashes"])
                stored.difference_update(event["block_hashes"])
    assert len(stored) <= 4
    assert stored >= set(block_hashes(second, BLOCK_TOKENS))
    assert not stored >= set(block_hashes(first, BLOCK_TOKENS))


def test_replay_gives_what_was_missed(engine: FakeProcess) -> None:
    for number in range(5):
        _complete(engine, [number] * BLOCK_TOKENS)
    everything = _replayed(engine, 0)
    assert list(everything) == list(range(5))
    assert _replayed(engine, 3) == {number: everything[number] for number in (3, 4)}
    assert _replayed(engine, 5) == {}


def test_a_replay_request_of_another_form_harms_nobody(engine: FakeProcess) -> None:
    _complete(engine, [1] * BLOCK_TOKENS)
    with _socket(zmq.DEALER, _source(engine)["replay_endpoint"]) as socket:
        socket.send_multipart([b"what"])
        socket.send_multipart([b"", bytes(8)])
        assert socket.recv_multipart()[2] == bytes(8)
    assert list(_replayed(engine, 0)) == [0]


@pytest.mark.parametrize("missing", ["zmq", "msgpack"])
def test_a_missing_library_is_an_error_with_a_way_out(missing: str) -> None:
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "from longboat_fake.__main__ import main\n"
        "sys.exit(main(['--model', 'm', '--port', '0', '--kv-events', 'tcp://127.0.0.1:0']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert f"--kv-events needs the package {missing}" in done.stderr
    assert "longboat[kv-events]" in done.stderr
