"""The prefix feed between the fake engine and a gateway: what is held, lost events, restarts, bad frames."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Iterator

import httpx
import pytest
from gateway_lab import eventually
from prefix_lab import KEY, PrefixLab, chat

from engines.fake_process import PLAIN, FakeProcess, fake_engine, spawn_fake, wait_until_serving
from free_ports import free_port
from longboat.gateway.prefixes.frames import MAX_NAMED_BLOCKS, BadFrameError, FrameReader, prefix_header
from longboat_vllm.prefixes.header import read_prefix_header

SYSTEM = " ".join(f"rule{n}" for n in range(300))


@pytest.fixture
def engine() -> Iterator[FakeProcess]:
    with fake_engine("--kv-blocks", "150", "--block-size", "8", key=KEY) as started:
        yield started


def fault(engine: FakeProcess, **what: object) -> None:
    httpx.post(f"{engine.url}/fault", json=what, timeout=5, verify=PLAIN).raise_for_status()


def loads(lab: PrefixLab) -> list[tuple[int, int, int | None]]:
    """What each engine told last: requests that run, requests that wait, and tokens that wait."""
    return [(report.running, report.waiting, report.queued_tokens) for report in lab.reports.values()]


def words(seed: int, num: int = 60) -> str:
    rng = random.Random(seed)
    return " ".join(f"w{rng.randrange(10_000)}" for _ in range(num))


async def test_conversations_find_cached_what_the_index_says(engine: FakeProcess) -> None:
    async with PrefixLab(engine.url) as lab:
        await lab.live()
        talks: dict[int, list[str]] = {n: [SYSTEM] for n in range(4)}
        for turn in range(24):
            talk = talks[turn % 4]
            talk.append(words(turn))
            _, _, answer = await lab.send(chat(*talk))
            talk.append(answer)
        figures = lab.state.accuracy.snapshot()
        assert figures.cached_tokens > 3000
        assert figures.precision > 0.95
        assert figures.recall > 0.8


async def test_what_is_evicted_is_gone_and_what_is_asked_again_is_there(engine: FakeProcess) -> None:
    async with PrefixLab(engine.url) as lab:
        await lab.live()
        body = chat(SYSTEM, words(1))
        await lab.send(body)
        await eventually(lambda: lab.depth(body)[0] == lab.depth(body)[1] > 3, "all of it is held")
        fault(engine, kind="evict")
        await eventually(lambda: lab.depth(body)[0] == 0, "nothing is held")
        await lab.send(body)
        await eventually(lambda: lab.depth(body)[0] == lab.depth(body)[1], "all of it is held again")


async def test_lost_events_are_noticed_and_the_index_is_right_again(engine: FakeProcess) -> None:
    async with PrefixLab(engine.url) as lab:
        await lab.live()
        old, new = chat(SYSTEM, words(1)), chat("Be short.", words(2, 400))
        await lab.send(old)
        await eventually(lambda: lab.depth(old)[0] > 3, "it is held")
        fault(engine, kind="lose_events", times=1)
        await asyncio.sleep(0.1)
        await lab.send(new)
        await eventually(lambda: lab.depth(old)[0] == 0, "what is not known is not claimed")
        await lab.send(old)
        await eventually(lambda: lab.depth(old)[0] > 3 and lab.state.num_resets == 2, "it is held again")


async def test_a_connection_that_breaks_goes_on_where_it_was(engine: FakeProcess) -> None:
    async with PrefixLab(engine.url) as lab:
        await lab.live()
        body = chat(SYSTEM, words(1))
        await lab.send(body)
        await eventually(lambda: lab.depth(body)[0] > 3, "it is held")
        fault(engine, kind="hang")
        await eventually(lambda: not lab.state.is_live, "a silent feed is given up")
        fault(engine, kind="none")
        await lab.live()
        assert lab.state.num_resets == 1
        assert lab.depth(body)[0] > 3
        fault(engine, kind="evict")
        await eventually(lambda: lab.depth(body)[0] == 0, "later events come")


async def test_a_gateway_that_comes_later_hears_everything(engine: FakeProcess) -> None:
    body = chat(SYSTEM, words(1))
    async with PrefixLab(engine.url) as lab:
        await lab.live()
        await lab.send(body)
    async with PrefixLab(engine.url) as late:
        await eventually(lambda: late.states and late.depth(body)[0] == late.depth(body)[1], "the snapshot comes")


async def test_an_engine_that_starts_again_holds_nothing() -> None:
    port = free_port()
    engine = spawn_fake("--block-size", "8", port=port, key=KEY)
    try:
        wait_until_serving(engine)
        async with PrefixLab(engine.url) as lab:
            await lab.live()
            body = chat(SYSTEM, words(1))
            await lab.send(body)
            await eventually(lambda: lab.depth(body)[0] > 3, "it is held")
            epoch = lab.state.epoch
            engine.stop()
            engine = spawn_fake("--block-size", "8", port=port, key=KEY)
            await eventually(lambda: lab.state.epoch != epoch, "the new engine is heard")
            assert lab.depth(body)[0] == 0
    finally:
        engine.stop()


async def test_load_and_results_come_to_processes_that_take_no_names(engine: FakeProcess) -> None:
    async with PrefixLab(engine.url, names=False) as lab:
        await lab.live()
        await lab.send(chat(SYSTEM, words(1)))
        prompt_tokens, cached_tokens, _ = await lab.send(chat(SYSTEM, words(2)))
        assert 0 < cached_tokens < prompt_tokens
        assert lab.depth(chat(SYSTEM))[0] == 0
        await eventually(lambda: loads(lab) == [(0, 0, 0)], "the engine tells that it is idle")
        slow = asyncio.create_task(lab.post(chat(words(3), max_tokens=20)))  # its result is lost with a feed that broke
        fault(engine, kind="hang")
        await eventually(lambda: lab.state.is_live is False or slow.done(), "the engine hangs or was faster")
        fault(engine, kind="none")
        await slow


async def test_engines_without_the_key_or_the_feed_are_left_alone(engine: FakeProcess) -> None:
    async with PrefixLab(engine.url, key="wrong") as lab:
        await eventually(lambda: lab.states and not lab.state.has_feed, "the engine refuses")
        assert not lab.state.is_live


@pytest.mark.parametrize("body", [b"", b"ok", b'{"object":"list","data":[]}'], ids=["empty", "short", "JSON"])
async def test_a_server_that_answers_other_bytes_is_left_alone(body: bytes) -> None:
    asked = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with PrefixLab(f"http://127.0.0.1:{port}") as lab:
            await eventually(lambda: lab.states and not lab.state.has_feed, "it has no feed")
            await asyncio.sleep(1.5)
    assert asked == 1


def test_frames_come_in_any_pieces_and_too_long_ones_are_refused() -> None:
    frames = [(3, 1, b"12345678"), (5, 0, b""), (3, 2, b"x" * 100)]
    data = b"".join(struct.pack("<IBQ", len(payload), kind, number) + payload for kind, number, payload in frames)
    for size in (1, 2, 13, 50, len(data)):
        reader = FrameReader()
        found = [frame for at in range(0, len(data), size) for frame in reader.feed(data[at : at + size])]
        assert found == frames
    with pytest.raises(BadFrameError, match="the limit is"):
        list(FrameReader().feed(struct.pack("<IBQ", 1 << 30, 1, 1)))


def test_the_engine_reads_the_header_that_a_gateway_writes() -> None:
    line = prefix_header(
        2**64 - 1, 2, b"a" * 8 + b"b" * 8 + b"c" * 8, memoryview(struct.pack("=3I", 1, 5, 9)).cast("I")
    )
    name, _, value = line.partition(b": ")
    prompt = read_prefix_header(value.strip())
    assert name == b"x-longboat-prefix"
    assert (prompt.tag, prompt.expected) == (2**64 - 1, 2)
    assert (prompt.names, list(prompt.ends)) == ((b"a" * 8, b"b" * 8, b"c" * 8), [1, 5, 9])
    longest = prefix_header(1, 9, b"n" * 8 * MAX_NAMED_BLOCKS, range(MAX_NAMED_BLOCKS))
    assert len(longest) < 65_536
    assert len(read_prefix_header(longest.partition(b": ")[2].strip()).names) == MAX_NAMED_BLOCKS
