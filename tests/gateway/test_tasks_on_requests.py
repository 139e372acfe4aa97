"""Models of several tasks behind one gateway: each has its own paths, and another one's are refused with what helps."""

from __future__ import annotations

import json

import msgspec
import pytest
from gateway_lab import config, endpoint, table

from longboat.core.policy import Alias, Policy, WeightedPool
from longboat.core.tasks import Task
from longboat.gateway.api.apis import APIS
from longboat.gateway.api.tasks import paths_of
from longboat.gateway.calls.head import KnownHead
from longboat.gateway.calls.model_request import Call
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.http.request import Request
from longboat.gateway.http.responses import Refusal
from longboat.gateway.requests.admit import Deferred, admit

TASKS: dict[str, Task] = {"chat": "generate", "embed": "embed", "rerank": "rerank", "classes": "classify"}
BODY = {"input": "x", "query": "x", "documents": ["x"], "text_1": "x", "text_2": "x", "prompt": "x", "messages": []}


def decide(path: str, model: str, policy: Policy) -> Call | Deferred | Refusal | bytes:
    state = GatewayState(config())
    names = (*TASKS, "unknown")
    state.offer_table("e", table(*(endpoint("http://127.0.0.1:9", m, m) for m in names), models=names))
    state.offer_policy(msgspec.json.encode(policy))
    body = json.dumps({"model": model, "max_tokens": 1, **BODY}).encode()
    noted = {b"content-type": b"application/json", b"content-length": str(len(body)).encode()}
    request = Request(path.encode(), "POST", "r", noted, [])
    request.pieces.append(body)
    return admit(state, request, KnownHead(request), close=False)


@pytest.mark.parametrize(
    ("path", "models"),
    [
        ("/v1/chat/completions", {"chat"}),
        ("/v1/completions", {"chat"}),
        ("/v1/messages", {"chat"}),
        ("/v1/embeddings", {"embed"}),
        ("/rerank", {"embed", "rerank"}),
        ("/v1/score", {"embed", "rerank"}),
        ("/classify", {"rerank", "classes"}),
        ("/pooling", {"embed", "rerank", "classes"}),
        ("/tokenize", set(TASKS)),
    ],
)
def test_each_path_goes_to_models_of_its_tasks(path: str, models: set[str]) -> None:
    policy = Policy(tasks=TASKS)
    for model in TASKS:
        found = decide(path, model, policy)
        if model in models:
            assert isinstance(found, Call), (model, found)
        else:
            assert isinstance(found, Refusal), (model, found)
            assert (found.status, found.code) == (404, "path_not_offered")


def test_the_refusal_says_what_the_model_does_and_who_has_the_path() -> None:
    found = decide("/v1/chat/completions", "embed", Policy(tasks=TASKS))
    assert isinstance(found, Refusal)
    assert "'embed' makes embeddings; it does not generate text. It has /v1/embeddings, " in found.message
    assert found.message.endswith("Models that have /v1/chat/completions: chat.")


def test_a_model_whose_task_is_not_known_may_have_every_path() -> None:
    assert isinstance(decide("/v1/embeddings", "unknown", Policy(tasks=TASKS)), Call)
    assert isinstance(decide("/v1/embeddings", "chat", Policy()), Call)


def test_an_alias_is_refused_by_the_model_behind_it() -> None:
    alias = Alias(name="ada", pools=(WeightedPool(model="embed"),))
    assert isinstance(decide("/v1/embeddings", "ada", Policy(tasks=TASKS, aliases=(alias,))), Call)
    assert isinstance(decide("/v1/completions", "ada", Policy(tasks=TASKS, aliases=(alias,))), Refusal)


def test_every_path_has_a_task() -> None:
    assert {path for task in ("generate", "embed", "rerank", "classify") for path in paths_of(task)} == {
        path.decode() for path in APIS
    }
