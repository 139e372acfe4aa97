"""Tests of the fake engine's continuous batching: responses share steps, and long prompts take several."""

from __future__ import annotations

import asyncio

from longboat_fake.engine.step_loop import StepCosts, StepLoop, StepStream

COSTS = StepCosts(base_s=1e-3, prompt_token_s=1e-7, sequence_s=1e-5, batched_tokens=100)


async def take(stream: StepStream, tokens: int) -> None:
    for _ in range(tokens):
        await stream.token()


async def test_responses_share_steps() -> None:
    loop = StepLoop(COSTS)
    streams = [loop.open(10, 20) for _ in range(4)]
    await asyncio.gather(*(take(stream, 20) for stream in streams))
    assert loop.num_steps == 20


async def test_a_prompt_longer_than_a_step_takes_several_beside_what_decodes() -> None:
    loop = StepLoop(COSTS)
    first = loop.open(10, 30)
    await take(first, 1)
    second = loop.open(450, 1)
    await take(second, 1)
    assert 5 <= loop.num_steps - 1 <= 6  # its chunks, and a step that was under way
    await take(first, 29)
    assert loop.num_steps == 30


async def test_a_response_that_is_closed_needs_no_more_steps() -> None:
    loop = StepLoop(COSTS)
    gone, kept = loop.open(10, 1000), loop.open(10, 5)
    await take(kept, 2)
    loop.close(gone)
    await take(kept, 3)
    again = loop.open(10, 1)
    await take(again, 1)
    assert loop.num_steps <= 7
