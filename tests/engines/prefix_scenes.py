"""What tests of named prefixes do with a real engine: its feed's claims against what requests find cached."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gateway"))

from gateway_lab import eventually
from prefix_lab import PrefixLab, chat

from adapter_files import write_adapter
from longboat.core.plan import GangPlan
from longboat.engines.contract import ADAPTERS_PATH
from longboat.gateway.http.message import ask

__all__ = (
    "converse",
    "find_what_is_claimed",
    "keep_adapters_apart",
    "keep_salts_apart",
    "know_later_and_see_evictions",
    "lab_of",
    "start_again",
)

KEY = "a-secret"
Running = Callable[[GangPlan, Path], AbstractContextManager[str]]
"""Serves a plan with a log file, and gives its address."""


def lab_of(url: str) -> PrefixLab:
    return PrefixLab(url, key=KEY, model="tiny")


def idle(lab: PrefixLab) -> bool:
    (report,) = lab.reports.values()
    return (report.running, report.waiting, report.queued_tokens) == (0, 0, 0)


def words(seed: int, num: int) -> str:
    rng = random.Random(seed)
    return " ".join(f"w{rng.randrange(1000)}" for _ in range(num))


SYSTEMS = [words(1000 + n, 60) for n in range(3)]


async def converse(lab: PrefixLab, talker: int, turns: int) -> None:
    """Hold conversations that share a system prompt with those of other talkers."""
    talk: list[str] = []
    for turn in range(turns):
        if sum(map(len, talk)) > 2500 or not talk:
            talk = [SYSTEMS[talker % 3]]
        talk.append(words(100 * talker + turn, 30))
        talk.append((await lab.send(chat(*talk, model="tiny")))[2])


async def find_what_is_claimed(url: str, capacity_tokens: int) -> None:
    """Conversations in a small cache find cached what the feed claims, while others are evicted."""
    async with lab_of(url) as lab:
        await lab.live()
        assert lab.state.block_tokens > 0
        assert lab.state.capacity_tokens == capacity_tokens
        await asyncio.gather(*(converse(lab, talker, 20) for talker in range(3)))
        figures = lab.state.accuracy.snapshot()
        assert figures.requests == 60
        assert figures.cached_tokens > 0.3 * figures.prompt_tokens
        assert figures.right_tokens >= 0.95 * figures.expected_tokens
        assert figures.right_tokens >= 0.8 * figures.cached_tokens


async def know_later_and_see_evictions(url: str) -> None:
    """A gateway that starts later knows the same, and an eviction reaches both."""
    async with lab_of(url) as lab, lab_of(url) as other:
        await lab.live()
        body = chat(SYSTEMS[0], words(1, 60), model="tiny")
        await lab.send(body)
        await eventually(lambda: lab.depth(body)[0] == lab.depth(body)[1], "it is held")
        await eventually(lambda: other.depth(body)[0] == other.depth(body)[1], "the other one knows it too")
        async with lab_of(url) as late:
            await eventually(lambda: late.states and late.depth(body)[0] == late.depth(body)[1], "the snapshot comes")
        for turn in range(24):
            await lab.send(chat(words(turn + 50, 150), model="tiny"))
        await eventually(lambda: lab.depth(body)[0] == 0 == other.depth(body)[0], "it was evicted")
        await eventually(lambda: idle(lab), "the engine tells that it is idle")


async def start_again(running: Running, plan: GangPlan, folder: Path) -> None:
    """An engine that starts again holds nothing, and is known again."""
    body = chat(SYSTEMS[2], words(3, 60), model="tiny")
    async with lab_of(f"http://127.0.0.1:{plan.head.ports['api']}") as lab:
        for start in range(2):
            with ExitStack() as stack:
                await asyncio.to_thread(stack.enter_context, running(plan, folder / f"{start}.log"))
                await lab.live()
                await eventually(lambda: lab.depth(body)[0] == 0, "a new engine holds nothing")
                await lab.send(body)
                await eventually(lambda: lab.depth(body)[0] == lab.depth(body)[1], "it is held")
            await eventually(lambda: not lab.state.is_live, "the feed broke off")


async def keep_salts_apart(url: str) -> None:
    """Equal prompts of two tenants share nothing; streams are told too."""
    async with lab_of(url) as lab:
        await lab.live()
        for salt in ("one", "two"):
            body = chat(SYSTEMS[1], words(7, 60), model="tiny", cache_salt=salt)
            assert (await lab.send(body))[1] == 0
            await eventually(lambda body=body: lab.depth(body)[0] == lab.depth(body)[1], "it is held")
            assert (await lab.send(body))[1] > 0
        streamed = chat(SYSTEMS[1], words(7, 60), model="tiny", cache_salt="two", stream=True)
        assert (await lab.send(streamed))[1] > 0


async def keep_adapters_apart(running: Running, plan: GangPlan, folder: Path) -> None:
    """Each adapter has prefixes of its own. plan: with room for two adapters"""
    known = [{"name": n, "revision": "1", "path": str(write_adapter(folder / n, 5))} for n in ("ad", "other")]
    text = (SYSTEMS[0], words(9, 60))
    with ExitStack() as stack:
        url = await asyncio.to_thread(stack.enter_context, running(plan, folder / "engine.log"))
        document = json.dumps({"adapters": known}).encode()
        taken = await ask(url, ADAPTERS_PATH, method="POST", body=document, api_key=KEY, timeout_s=60)
        assert json.loads(taken.body)["known"] == ["ad@1", "other@1"]
        async with lab_of(url) as lab:
            await lab.live()
            for model in ("tiny", "ad", "other"):
                body = chat(*text, model=model)
                more = {} if model == "tiny" else {"x-longboat-adapter": f"{model}@1"}
                assert (await lab.send(body, **more))[1] == 0
                await eventually(lambda body=body: lab.depth(body)[0] == lab.depth(body)[1], "it is held")
                assert (await lab.send(body, **more))[1] > 0
            assert lab.state.accuracy.snapshot().right_tokens == lab.state.accuracy.snapshot().cached_tokens
