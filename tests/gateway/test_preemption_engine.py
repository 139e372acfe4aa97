"""Streams of two real vLLMs that make room for a better class: each is token for token the one that was not paused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from engine_lab import Json, Stream, streamed
from gateway_lab import EVEN, endpoint, keyed, settled, table

from engines.test_vllm_serves import plan_on_loopback
from engines.vllm_node import ENGINE_PYTHON, VllmNode
from longboat.core.policy import PreemptionPolicy, QueuePolicy, ResumePolicy, TenantPolicy
from longboat.core.states import ResumeLevel

KEY = "a-secret"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
RULES = PreemptionPolicy(wait_s=0.05, run_s=0.2, max_pauses=3)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not ENGINE_PYTHON, reason="LONGBOAT_TEST_ENGINE_PYTHON names no engine environment's Python"),
]


@pytest.fixture(scope="module")
def engines(vllm_node: VllmNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    folder = tmp_path_factory.mktemp("replicas")
    plan = plan_on_loopback(vllm_node.tiny, pipeline=1, num_nodes=1)
    another = replace(plan_on_loopback(vllm_node.tiny, pipeline=1, num_nodes=1), replica="r1")
    with vllm_node.running(plan, folder / "0.log") as first, vllm_node.running(another, folder / "1.log") as second:
        yield [first, second]


def request(number: int, max_tokens: int) -> tuple[str, Json]:
    """Chats and completions, greedy and sampled."""
    body: Json = {"model": "tiny", "stream": True, "max_tokens": max_tokens, "ignore_eos": True, "seed": number}
    body |= {"temperature": (0, 1.2)[number % 2], "stream_options": {"include_usage": True}}
    words = f"Row number {number}, and do not stop"
    if number % 3:
        return CHAT, {**body, "messages": [{"role": "user", "content": words}]}
    return TEXT, {**body, "prompt": words}


async def test_streams_that_were_paused_are_token_exact(engines: list[str], make_gateway: Any) -> None:
    tenants = TenantPolicy(name="fast", priority=0), TenantPolicy(name="slow", priority=2)
    rules: Json = {"queue": QueuePolicy(preemption=RULES, headroom_ratio=0.0), "resume": ResumePolicy(wait_s=60)}
    policy, (fast, slow) = keyed(*tenants, routing=EVEN, **rules)
    gateway = await make_gateway(policy=policy)
    values: Json = {"api_key": KEY, "capacity": 2, "resume": ResumeLevel.CARRIED, "revision": "one"}
    gateway.state.offer_table("f", table(*(endpoint(url, f"r{i}", **values) for i, url in enumerate(engines))))

    async def asked(number: int, headers: str, max_tokens: int = 300) -> Stream:
        stream = await streamed(gateway, *request(number, max_tokens), headers)
        assert (stream.status, stream.done) == (200, True), stream.body[-300:]
        return stream

    wholes = [await asked(number, slow) for number in range(5)]
    running = [asyncio.create_task(asked(number, slow)) for number in range(5)]
    for number in range(40):
        if all(task.done() for task in running):
            break
        await asyncio.gather(*(asked(100 + number + i, fast, 20) for i in range(3)))
        await asyncio.sleep(0.1)
    for whole, paused in zip(wholes, await asyncio.gather(*running), strict=True):
        assert paused.meaning() == whole.meaning()
    (rows,) = (row for row in settled(gateway).metrics.snapshot()["series"] if row["tenant"] == "slow")
    print(f"{rows['preemptions']} pauses")
    assert rows["preemptions"] >= 3 and not rows["preempted"]
    assert {result for _, result, _ in gateway.state.metrics.snapshot()["resumes"]} == {"resumed"}
