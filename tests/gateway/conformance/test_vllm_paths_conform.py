"""Paths that only vLLM has: several chats at once, requests as token ids, token ids in and out."""

from __future__ import annotations

from typing import Any

import pytest
from conformance_lab import Place, Target

CHATS = [[{"role": "user", "content": text}] for text in ("Hello.", "What is tensor parallel?")]


@pytest.fixture(autouse=True)
def _real(target: Target) -> None:
    if target.engine != "vllm":
        pytest.skip("the fake engine does not have these paths")


def test_several_chats_in_one_request(chat: Place) -> None:
    response = chat.post("/v1/chat/completions/batch", messages=CHATS, max_tokens=3)
    assert response.status_code == 200, response.text
    assert [choice["index"] for choice in response.json()["choices"]] == [0, 1]
    assert 2 <= response.json()["usage"]["completion_tokens"] <= 6


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions/render", {"messages": CHATS[1]}),
        ("/v1/messages/render", {"messages": CHATS[1], "max_tokens": 5}),
        ("/v1/responses/render", {"input": "What is tensor parallel?"}),
    ],
)
def test_what_is_rendered_can_be_generated_from(path: str, body: dict[str, Any], chat: Place) -> None:
    rendered = chat.post(path, **body)
    assert rendered.status_code == 200, rendered.text
    request = {**rendered.json(), "model": chat.model}
    request["sampling_params"] = {**request["sampling_params"], "max_tokens": 3, "temperature": 0}
    whole = chat.post("/inference/v1/generate", **request)
    assert whole.status_code == 200, whole.text
    (choice,) = whole.json()["choices"]
    assert 1 <= len(choice["token_ids"]) <= 3
    assert whole.json()["usage"]["prompt_tokens"] == len(request["token_ids"])
    streamed = chat.post("/inference/v1/generate", **{**request, "stream": True}).text
    assert streamed.endswith("data: [DONE]\n\n")
    assert '"usage":{' not in streamed


def test_a_completion_is_rendered(chat: Place) -> None:
    response = chat.post("/v1/completions/render", prompt="What is tensor parallel?")
    assert response.status_code == 200, response.text
    assert response.json()[0]["token_ids"]


def test_a_tokenizer_is_described(chat: Place) -> None:
    response = chat.get(f"/tokenizer_info?model={chat.model}")
    assert response.status_code == 200, response.text
    assert response.json()["tokenizer_class"]


def test_a_path_that_a_model_lacks_is_refused_with_what_helps(target: Target, chat: Place, pooling: Place) -> None:
    embedding = chat.post("/v1/embeddings", input="x")
    chatting = pooling.post("/v1/chat/completions", messages=CHATS[0])
    assert (embedding.status_code, chatting.status_code) == (404, 404)
    if target.through_gateway:
        assert embedding.json()["error"]["code"] == chatting.json()["error"]["code"] == "path_not_offered"
        assert "task: embed" in embedding.json()["error"]["message"]
        assert "Use a model that generates text" in chatting.json()["error"]["message"]
