"""The fake engine's responses without tokens: embeddings, scores, ranks, classes and pooled values of texts."""

from __future__ import annotations

import base64
import math
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

from longboat_fake.api.requests import RefusedError, chat_prompt, prompts_in, text_of
from longboat_fake.engine.tokens import encode

__all__ = ("DIMENSIONS", "POOLING_PATHS", "Ids", "pooling_answer", "pooling_prompts", "similarity", "vector_of")

DIMENSIONS = 64
"""Default length of an embedding."""

_LABELS = ("north", "south", "deep")
_MAX_DIMENSIONS = 4096

Ids = tuple[int, ...]


def vector_of(token_ids: Ids, dimensions: int = DIMENSIONS) -> list[float]:
    """Return a vector of length 1: the normalised sum of token vectors, so texts with common words are close."""
    total = [0.0] * dimensions
    for token in token_ids:
        for index, value in enumerate(_token_vector(token, dimensions)):
            total[index] += value
    norm = math.sqrt(sum(value * value for value in total)) or 1.0
    return [round(value / norm, 6) for value in total]


def _token_vector(token: int, dimensions: int) -> list[float]:
    values: list[float] = []
    for block in range((dimensions + 31) // 32):
        digest = blake2b(struct.pack(">qi", token, block), digest_size=64).digest()
        values.extend(number / 32768 for number in struct.unpack(">32h", digest))
    return values[:dimensions]


def similarity(one: Ids, other: Ids) -> float:
    """Return the cosine of the angle between two texts' vectors, -1 to 1."""
    return round(sum(a * b for a, b in zip(vector_of(one), vector_of(other), strict=True)), 6)


def pooling_prompts(path: str, body: Mapping[str, Any]) -> list[Ids]:
    """Return the token ids of every text in the request, in order. Raises RefusedError."""
    return _KINDS[path][0](body)


def pooling_answer(path: str, body: Mapping[str, Any], prompts: Sequence[Ids], model: str, answer_id: str) -> Any:
    """Return the JSON response in vLLM's shape. Raises RefusedError."""
    prefix, make = _KINDS[path][1:]
    tokens = sum(map(len, prompts))
    head = {"id": f"{prefix}-{answer_id}", "object": "list", "created": int(time.time()), "model": model}
    return make(head, body, prompts, {"prompt_tokens": tokens, "total_tokens": tokens})


# reading requests


def _inputs(body: Mapping[str, Any]) -> list[Ids]:
    if "messages" in body:
        return [chat_prompt(body)]
    return prompts_in(body, "input")


def _pairs(body: Mapping[str, Any]) -> list[Ids]:
    names = (("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2"))
    for first, second in names:
        if first in body and second in body:
            ones, others = _texts(body[first]), _texts(body[second])
            if len(ones) not in (1, len(others)):
                raise RefusedError(400, f"{first} must be one text, or as many texts as {second}", first)
            return [*ones * (len(others) if len(ones) == 1 else 1), *others]
    raise RefusedError(400, "a score needs queries and documents", "queries")


def _ranking(body: Mapping[str, Any]) -> list[Ids]:
    if not isinstance(body.get("query"), str | dict) or not isinstance(body.get("documents"), list | str):
        raise RefusedError(400, "a ranking needs a query and documents", "query")
    return [*_texts(body["query"]), *_texts(body["documents"])]


def _texts(value: Any) -> list[Ids]:
    return [encode(_text(text)) for text in (value if isinstance(value, list) else [value])]


def _text(value: Any) -> str:
    return text_of(value.get("text", value.get("content"))) if isinstance(value, dict) else text_of(value)


# writing responses

_Usage = dict[str, int]
_Head = dict[str, Any]


def _embeddings(head: _Head, body: Mapping[str, Any], prompts: Sequence[Ids], usage: _Usage) -> Any:
    dimensions = body.get("dimensions") or DIMENSIONS
    if not isinstance(dimensions, int) or not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise RefusedError(400, f"dimensions must be a whole number from 1 to {_MAX_DIMENSIONS}", "dimensions")
    as_base64 = body.get("encoding_format") == "base64"
    vectors = (vector_of(prompt, dimensions) for prompt in prompts)
    values = [_base64(vector) if as_base64 else vector for vector in vectors]
    data = [{"index": i, "object": "embedding", "embedding": value} for i, value in enumerate(values)]
    return {**head, "data": data, "usage": _full(usage)}


def _pooled(head: _Head, body: Mapping[str, Any], prompts: Sequence[Ids], usage: _Usage) -> Any:
    data = [{"index": i, "object": "pooling", "data": vector_of(prompt)} for i, prompt in enumerate(prompts)]
    return {**head, "data": data, "usage": _full(usage)}


def _classes(head: _Head, body: Mapping[str, Any], prompts: Sequence[Ids], usage: _Usage) -> Any:
    data = []
    for index, prompt in enumerate(prompts):
        weights = [math.exp(value) for value in vector_of(prompt, len(_LABELS))]
        ratios = [round(weight / sum(weights), 6) for weight in weights]
        label = _LABELS[ratios.index(max(ratios))]
        data.append({"index": index, "label": label, "probs": ratios, "num_classes": len(_LABELS)})
    return {**head, "data": data, "usage": _full(usage)}


def _scores(head: _Head, body: Mapping[str, Any], prompts: Sequence[Ids], usage: _Usage) -> Any:
    half = len(prompts) // 2
    pairs = zip(prompts[:half], prompts[half:], strict=True)
    data = [{"index": i, "object": "score", "score": similarity(*pair)} for i, pair in enumerate(pairs)]
    return {**head, "data": data, "usage": _full(usage)}


def _ranks(head: _Head, body: Mapping[str, Any], prompts: Sequence[Ids], usage: _Usage) -> Any:
    given = body["documents"] if isinstance(body["documents"], list) else [body["documents"]]
    results: list[dict[str, Any]] = [
        {
            "index": index,
            "document": {"text": _text(document), "multi_modal": None},
            "relevance_score": similarity(prompts[0], prompts[index + 1]),
        }
        for index, document in enumerate(given)
    ]
    results.sort(key=lambda result: float(result["relevance_score"]), reverse=True)
    results = results[: body.get("top_n") or len(results)]
    return {"id": head["id"], "model": head["model"], "usage": usage, "results": results}


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _full(usage: _Usage) -> dict[str, Any]:
    return {**usage, "completion_tokens": 0, "prompt_tokens_details": None, "completion_tokens_details": None}


_Reader = Callable[[Mapping[str, Any]], list[Ids]]
_Maker = Callable[[_Head, Mapping[str, Any], Sequence[Ids], _Usage], Any]
_KINDS: dict[str, tuple[_Reader, str, _Maker]] = {
    "/v1/embeddings": (_inputs, "embd", _embeddings),
    "/pooling": (_inputs, "pooling", _pooled),
    "/classify": (_inputs, "classify", _classes),
    **dict.fromkeys(("/score", "/v1/score"), (_pairs, "score", _scores)),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank"), (_ranking, "score", _ranks)),
}
POOLING_PATHS = tuple(_KINDS)
