"""The closed forms against a simulation that goes step by step."""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import replace
from random import Random

import pytest

from longboat.planner.memory.engine import EngineTraits, engine_traits
from longboat.planner.predict.load import Load
from longboat.planner.predict.queueing import first_token_passes, interference_share, polled_steps

STEP_S, SEQUENCE_S = 6e-3, 1e-4


def simulate(traits: EngineTraits, load: Load, prefill_s: float) -> tuple[float, float]:
    """Mean TTFT in prefills, and prefills of others that a token waits for on average."""
    random = Random(1)
    mixed = traits.policy == "mixed"
    left, now_s, steps, looked = int(load.waves * load.concurrency), 0.0, 0, 0
    sent: deque[list[float]] = deque()
    queue: deque[list[float]] = deque()
    active: list[tuple[float, float, float]] = []
    waits: list[float] = []
    inters: list[float] = []

    def send() -> None:
        nonlocal left
        if left > 0:
            left -= 1
            draws = (1.0 - load.spread * random.random() for _ in range(2))
            lengths = zip((load.prompt_tokens, load.output_tokens), draws, strict=True)
            sent.append([now_s, *(int(tokens * draw) for tokens, draw in lengths)])

    for _ in range(int(load.concurrency)):
        send()
    while sent or queue or active:
        if not active or steps >= looked + traits.poll_steps:
            queue.extend(sent)
            sent.clear()
            looked = steps
        if queue:
            room = traits.chunk_tokens - (len(active) if mixed else 0)
            done, computed = [], 0.0
            while queue and room > 0:
                taken = min(room, queue[0][1])
                queue[0][1] -= taken
                room, computed = room - taken, computed + taken
                if queue[0][1] > 0:
                    break
                done.append(queue.popleft())
            now_s += computed * prefill_s / load.mean_prompt_tokens
            if mixed:
                now_s, steps = now_s + (0.3 * STEP_S + SEQUENCE_S * len(active) if active else 0.0), steps + 1
            looked = steps - int(traits.poll_steps)  # after a prompt the engine looks at once
            for sent_s, _, tokens in done:
                waits.append(now_s - sent_s)
                heapq.heappush(active, (steps + tokens, now_s, tokens))
        else:
            ahead = min(int(active[0][0]), looked + int(traits.poll_steps)) - steps
            now_s, steps = now_s + ahead * (STEP_S + SEQUENCE_S * len(active)), steps + ahead
        while active and active[0][0] <= steps:
            _, start_s, tokens = heapq.heappop(active)
            inters.append((now_s - start_s) / tokens)
            send()
    own_s = STEP_S + SEQUENCE_S * load.concurrency
    return sum(waits) / len(waits) / prefill_s, (sum(inters) / len(inters) - own_s) / prefill_s


@pytest.mark.parametrize("concurrency", [16, 64, 128])
@pytest.mark.parametrize(
    ("engine", "spread", "prompt", "output", "prefill_s"),
    [
        ("sglang", 0.2, 8192, 1024, 0.15),
        ("vllm", 0.2, 8192, 1024, 0.15),
        ("sglang", 0.0, 8192, 1024, 0.15),
        ("sglang", 0.0, 4096, 128, 0.1),
        ("vllm", 0.0, 4096, 128, 0.1),
    ],
)
def test_waiting_for_the_first_token_is_as_simulated(
    engine: str, spread: float, prompt: int, output: int, prefill_s: float, concurrency: int
) -> None:
    load = Load(concurrency=concurrency, prompt_tokens=prompt, output_tokens=output, spread=spread)
    passes, share = simulate(engine_traits(engine), load, prefill_s)
    life_s = (share * prefill_s + STEP_S + SEQUENCE_S * concurrency) * load.mean_output_tokens
    busy = concurrency * prefill_s / (life_s + passes * prefill_s)
    closed = first_token_passes(engine_traits(engine), load, running=concurrency, busy_ratio=busy)
    assert closed == pytest.approx(passes, rel=0.35)


@pytest.mark.parametrize(
    ("engine", "spread", "prompt", "output"),
    [("sglang", 0.2, 8192, 1024), ("vllm", 0.2, 8192, 1024), ("sglang", 0.0, 4096, 128), ("vllm", 0.0, 4096, 128)],
)
def test_interference_is_as_simulated(engine: str, spread: float, prompt: int, output: int) -> None:
    load = Load(concurrency=64, prompt_tokens=prompt, output_tokens=output, spread=spread)
    _, share = simulate(engine_traits(engine), load, 0.12)
    assert interference_share(engine_traits(engine), load, running=64) == pytest.approx(share, rel=0.15)


def test_equal_lengths_keep_requests_in_step_where_prompts_go_first() -> None:
    equal, drawn = (Load(concurrency=64, prompt_tokens=8192, output_tokens=512, spread=spread) for spread in (0.0, 0.2))
    engine = engine_traits("sglang")
    waits = [first_token_passes(engine, load, running=64, busy_ratio=0.3) for load in (equal, drawn)]
    assert waits[0] > 5 * waits[1]


@pytest.mark.parametrize("concurrency", [8, 32, 128])
@pytest.mark.parametrize(
    ("prompt", "output", "prefill_s"), [(1024, 1024, 0.03), (8192, 1024, 0.15), (1024, 8192, 0.03)]
)
def test_an_engine_that_looks_for_requests_seldom_lets_them_wait(
    prompt: int, output: int, prefill_s: float, concurrency: int
) -> None:
    engine = replace(engine_traits("sglang"), poll_steps=30.0, chunk_tokens=32_768)
    load = Load(concurrency=concurrency, prompt_tokens=prompt, output_tokens=output)
    seldom, share = simulate(engine, load, prefill_s)
    step_s = STEP_S + SEQUENCE_S * concurrency
    life_s = (share * prefill_s + step_s) * load.mean_output_tokens
    busy = concurrency * prefill_s / (life_s + seldom * prefill_s)
    closed = first_token_passes(engine, load, running=concurrency, busy_ratio=busy)
    closed += polled_steps(engine, load, running=concurrency) * step_s / prefill_s
    assert closed == pytest.approx(seldom, rel=0.35)


def test_one_request_at_a_time_never_waits_for_a_look() -> None:
    engine = replace(engine_traits("sglang"), poll_steps=30.0)
    alone = Load(concurrency=1, prompt_tokens=1024, output_tokens=1024)
    assert polled_steps(engine, alone, running=1.0) == 0.0
    assert polled_steps(engine, replace(alone, concurrency=64), running=64.0) == 14.5
    assert polled_steps(engine, replace(alone, concurrency=64, spread=0.0), running=64.0) == 0.0
