"""A client comes back to a real vLLM's stream at tokens whose words the engine's parser holds back."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from engine_lab import Json, Stream, streamed
from gateway_lab import EVEN, endpoint, table

from engines.test_vllm_serves import plan_on_loopback
from engines.vllm_node import ENGINE_PYTHON, VllmNode
from longboat.core.policy import Policy
from longboat.core.states import ResumeLevel

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
def engine(vllm_node: VllmNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("replica")
    with vllm_node.running(plan_on_loopback(vllm_node.tiny, pipeline=1, num_nodes=1), folder / "log") as url:
        yield url


def asked(words: str) -> Json:
    messages = [{"role": "user", "content": words}]
    tools = {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}
    return {"model": "tiny", "stream": True, "temperature": 0, "max_tokens": 160, "messages": messages, **tools}


def arguments_of(body: bytes) -> str:
    """Return the arguments of the calls in these events, however the engine divided them."""
    return str(Stream(body=body).meaning()["texts"].get("0.tool0.arguments", ""))


async def test_rest_of_a_tool_call_comes_from_a_point_within_its_white_space(engine: str, make_gateway: Any) -> None:
    """A busy engine tells some of these tokens together with what comes before, and so a client has such a point."""
    gateway = await make_gateway(policy=Policy(routing=EVEN))
    values: Json = {"api_key": "a-secret", "resume": ResumeLevel.CARRIED, "revision": "one"}
    gateway.state.offer_table("f", table(endpoint(engine, "r0", **values)))
    num_points = 0
    for words in ("Row the boat", "Who rows?"):
        whole = await streamed(gateway, CHAT, asked(words))
        assert (whole.status, whole.done) == (200, True), whole.body[-300:]
        token = whole.headers["x-longboat-resume"]
        places = [int(place) for place in whole.event_ids if place.isdecimal()]
        for had, following in pairwise(places):
            if had < 9 or following - had < 3 or following == places[-1]:
                continue  # the call's name comes alone, and its end brings what is no argument
            num_points += 1
            point = f"last-event-id: {following - 1}\r\nx-longboat-resume: {token}\r\n"
            rest = await streamed(gateway, CHAT, asked(words), point)
            assert (rest.status, rest.done) == (200, True), rest.body
            assert rest.body.startswith(b"id: %d\n" % following)
            has = arguments_of(whole.body[: whole.body.index(b"id: %d\n" % following)])
            assert has + arguments_of(rest.body) == arguments_of(whole.body)
    assert num_points
