"""Models, and what clients are told when a request cannot be served."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from conformance_lab import DEADLINE_S, Place, Target

ASK: Any = [{"role": "user", "content": "Hello."}]


def test_models_are_listed(client: openai.OpenAI, target: Target) -> None:
    names = {model.id for model in client.models.list()}
    assert target.chat.model in names
    if target.through_gateway:
        assert target.pooling.model in names
        assert client.models.retrieve(target.pooling.model).object == "model"


@pytest.mark.parametrize("path", ["chat", "completions", "embeddings", "responses"])
def test_unknown_model_is_not_found(client: openai.OpenAI, pooling: Place, path: str) -> None:
    name: Any = "no-such-model"
    with pooling.openai() as other, pytest.raises(openai.NotFoundError) as caught:
        match path:
            case "chat":
                client.chat.completions.create(model=name, messages=ASK)
            case "completions":
                client.completions.create(model=name, prompt="x")
            case "embeddings":
                other.embeddings.create(model=name, input="x")
            case _:
                client.responses.create(model=name, input="x")
    assert "no-such-model" in caught.value.message


@pytest.mark.parametrize(
    "fields",
    [{"messages": []}, {"messages": "x"}, {"max_tokens": 10**7}, {"max_tokens": -1}, {"n": 0}, {"stop": 3}],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_senseless_fields_are_a_bad_request(client: openai.OpenAI, chat: Place, fields: Any, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": chat.model, "messages": ASK, "stream": stream, **fields})
    body: Any = caught.value.body
    assert body["message"]


def test_prompt_beyond_the_context_is_a_bad_request(client: openai.OpenAI, chat: Place) -> None:
    with pytest.raises(openai.BadRequestError, match="context"):
        client.chat.completions.create(model=chat.model, messages=[{"role": "user", "content": "boat " * 5000}])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"nul"], ids=repr)
def test_body_that_is_no_json_object_is_refused(target: Target, chat: Place, body: bytes) -> None:
    headers = {**chat.headers, "content-type": "application/json"}
    response = httpx.post(f"{chat.url}/v1/chat/completions", content=body, headers=headers, timeout=DEADLINE_S)
    assert response.status_code in (400, 422)
    if target.through_gateway or target.engine == "fake":
        assert response.json()["error"]["message"]
    else:
        assert response.json()  # vLLM has other words for bytes that are no text


def test_path_that_is_not_there_is_not_found(chat: Place) -> None:
    assert chat.get("/v1/nothing").status_code == 404
    assert chat.get("/v1/chat/completions").status_code == 405
