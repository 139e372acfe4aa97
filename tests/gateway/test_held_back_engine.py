"""A client comes back to a real vLLM's stream at tokens whose words the engine's parser holds back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from engine_lab import Json, Stream, streamed
from gateway_lab import EVEN, endpoint, table

from engines.test_vllm_serves import plan_on_loopback
from engines.vllm_node import ENGINE_PYTHON, VllmNode
from longboat.core.policy import Policy
from longboat.core.states import Endpoint, ResumeLevel

CHAT = "/v1/chat/completions"
FIELDS = {
    "name": {"type": "string"},
    "knots": {"type": "integer"},
    "crew": {"type": "array", "items": {"type": "string"}},
}
TOOL = {"name": "row", "parameters": {"type": "object", "properties": FIELDS, "required": list(FIELDS)}}

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not ENGINE_PYTHON, reason="LONGBOAT_TEST_ENGINE_PYTHON names no engine environment's Python"),
]


@pytest.fixture(scope="module")
def engines(vllm_node: VllmNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Yield an engine that tells three tokens in each event, and one that tells each by itself."""
    folder = tmp_path_factory.mktemp("replicas")
    each = plan_on_loopback(vllm_node.tiny, pipeline=1, num_nodes=1)
    other = plan_on_loopback(vllm_node.tiny, pipeline=1, num_nodes=1)
    threes = replace(other, replica="r1", extra_args=("--stream-interval", "3"))
    with (
        vllm_node.running(threes, folder / "threes.log") as first,
        vllm_node.running(each, folder / "each.log") as second,
    ):
        yield first, second


def asked(words: str) -> Json:
    messages = [{"role": "user", "content": words}]
    tools = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}
    return {"model": "tiny", "stream": True, "temperature": 0, "max_tokens": 160, "messages": messages, **tools}


def arguments_of(body: bytes) -> str:
    """Return the arguments of the calls in these events, however the engine divided them."""
    return str(Stream(body=body).meaning()["texts"].get("0.tool0.arguments", ""))


def points_of(whole: Stream) -> dict[int, bytes]:
    """Return what a client has at each numbered event: the events up to it, and the event itself."""
    heads = {int(place): whole.body.index(f"id: {place}\n".encode()) for place in whole.event_ids if place.isdecimal()}
    return {place: whole.body[: whole.body.index(b"\n\n", head) + 2] for place, head in heads.items()}


async def test_rest_of_a_tool_call_comes_from_a_point_within_its_white_space(
    engines: tuple[str, str], make_gateway: Any
) -> None:
    """Some events have words and held-back tokens after them. Another engine makes no event that ends there."""
    gateway = await make_gateway(policy=Policy(routing=EVEN))
    values: Json = {"api_key": "a-secret", "resume": ResumeLevel.CARRIED, "revision": "one"}
    threes, each = (endpoint(url, f"r{number}", **values) for number, url in enumerate(engines))

    async def answer(replica: Endpoint, words: str, point: str = "") -> Stream:
        gateway.state.offer_table("f", table(replica, version=next(versions)))
        found = await streamed(gateway, CHAT, asked(words), point)
        assert (found.status, found.done) == (200, True), found.body[-300:]
        return found

    versions = count(1)
    num_within = 0
    for words in ("Row the boat", "Who rows?"):
        whole = await answer(threes, words)
        points, token = points_of(whole), whole.headers["x-longboat-resume"]
        told = points_of(await answer(each, words))
        for place in sorted(points)[:-1]:  # the last has all
            if place in told or not arguments_of(points[place]):
                continue
            num_within += 1
            rest = await answer(each, words, f"last-event-id: {place}\r\nx-longboat-resume: {token}\r\n")
            assert arguments_of(points[place]) + arguments_of(rest.body) == arguments_of(whole.body)
    assert num_within
