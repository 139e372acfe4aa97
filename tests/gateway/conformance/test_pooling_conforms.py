"""Embeddings by the official OpenAI client; scores, ranks and token ids, which no client covers, by plain HTTP."""

from __future__ import annotations

import math

import openai
import pytest
from conformance_lab import Place

DOCUMENTS = ["a boat on the river", "the boat", "nothing of the kind"]


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings_of_texts(pooling: Place, encoding: str) -> None:
    with pooling.openai() as client:
        answer = client.embeddings.create(
            model=pooling.model,
            input=["the boat", "row"],
            encoding_format=encoding,  # type: ignore[arg-type]
        )
    assert [item.index for item in answer.data] == [0, 1]
    if encoding == "float":
        assert math.isclose(sum(value * value for value in answer.data[0].embedding), 1, abs_tol=1e-2)
    assert answer.data[0].embedding != answer.data[1].embedding
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0


def test_embeddings_by_the_clients_own_way(pooling: Place) -> None:
    """The client asks for base64 when it is told nothing, and unpacks it."""
    with pooling.openai() as client:
        own = client.embeddings.create(model=pooling.model, input="the boat").data[0].embedding
        plain = client.embeddings.create(model=pooling.model, input="the boat", encoding_format="float")
    assert list(own) == pytest.approx(plain.data[0].embedding, abs=1e-5)


def test_embeddings_of_token_ids(pooling: Place) -> None:
    with pooling.openai() as client:
        answer = client.embeddings.create(model=pooling.model, input=[[5, 6, 7], [8]], encoding_format="float")
    assert (len(answer.data), answer.usage.prompt_tokens) == (2, 4)


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_score(pooling: Place, path: str) -> None:
    document = pooling.post(path, queries="the boat", documents=DOCUMENTS).json()
    scores = [item["score"] for item in document["data"]]
    assert len(scores) == 3
    assert max(scores) == scores[1] == pytest.approx(1, abs=1e-2)
    assert document["usage"]["prompt_tokens"] > 0
    older = pooling.post(path, text_1="the boat", text_2=DOCUMENTS).json()
    assert [item["score"] for item in older["data"]] == pytest.approx(scores)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_rerank(pooling: Place, path: str) -> None:
    document = pooling.post(path, query="the boat", documents=DOCUMENTS, top_n=2).json()
    assert len(document["results"]) == 2
    best = document["results"][0]
    assert (best["index"], best["document"]["text"]) == (1, "the boat")
    assert best["relevance_score"] >= document["results"][1]["relevance_score"]
    assert document["usage"]["total_tokens"] > 0


def test_pooling(pooling: Place) -> None:
    document = pooling.post("/pooling", input=["the boat", "row"]).json()
    assert [item["object"] for item in document["data"]] == ["pooling"] * 2
    assert document["usage"]["prompt_tokens"] > 0


def test_bad_input_is_a_bad_request(pooling: Place) -> None:
    with pooling.openai() as client, pytest.raises(openai.BadRequestError):
        client.embeddings.create(model=pooling.model, input={"no": "text"})  # type: ignore[arg-type]
    assert pooling.post("/v1/rerank", documents=["x"]).status_code == 400


@pytest.mark.parametrize("kind", ["chat", "pooling"])
def test_tokenize_there_and_back(chat: Place, pooling: Place, kind: str) -> None:
    place = {"chat": chat, "pooling": pooling}[kind]
    there = place.post("/tokenize", prompt="the boat", return_token_strs=True).json()
    assert there["count"] == len(there["tokens"]) == len(there["token_strs"])
    assert place.post("/detokenize", tokens=there["tokens"]).json() == {"prompt": "the boat"}


def test_tokenize_counts_a_chat(chat: Place) -> None:
    messages = [{"role": "user", "content": "What is tensor parallel?"}]
    count = chat.post("/tokenize", messages=messages).json()["count"]
    usage = chat.post("/v1/chat/completions", messages=messages, max_tokens=1).json()["usage"]
    assert count == usage["prompt_tokens"]
