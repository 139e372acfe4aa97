"""The API's own answers, and which requests are refused before an engine hears of them."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Sequence
from typing import Any

import pytest
from gateway_lab import config, endpoint, keyed, table

from longboat.core.policy import TenantPolicy
from longboat.gateway.http import error_responses
from longboat.gateway.process.server import Gateway

CHAT = "/v1/chat/completions"


async def test_models_are_listed(make_gateway: Any, connect: Any) -> None:
    gateway = await make_gateway("http://127.0.0.1:1")
    gateway.state.table.offer("e", table(models=("tiny", "org/big model"), version=2))
    client = await connect(gateway)
    listed = (await client.get("/v1/models")).json()
    assert listed["object"] == "list"
    assert [m["id"] for m in listed["data"]] == ["tiny", "org/big model"]
    assert (await client.get("/v1/models/org/big%20model")).json()["id"] == "org/big model"
    missing = await client.get("/v1/models/tinny")
    assert (missing.status, missing.code) == (404, "model_not_found")


async def test_a_models_card_has_the_fields_that_benchmarks_read(make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway("http://127.0.0.1:1"))
    (card,) = (await client.get("/v1/models")).json()["data"]
    assert (card["root"], card["parent"]) == ("tiny", None)  # vllm bench serve takes root for the tokenizer


@pytest.mark.parametrize("body", [{}, {"model": None}, {"model": ""}])
async def test_a_body_without_a_model_means_the_only_one_that_the_key_may_use(
    body: dict[str, Any], make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    only, both = TenantPolicy(name="a", models=("tiny",)), TenantPolicy(name="b")
    policy, (line, line_of_both) = keyed(only, both)
    upstream = await make_upstream()
    gateway = await make_gateway(upstream, policy=policy)
    gateway.state.offer_table("e", table(endpoint(upstream), models=("tiny", "other"), version=2))
    client = await connect(gateway)
    assert (await client.post({**body, "prompt": "hi"}, "/tokenize", line)).status == 200  # as lm-eval sends it
    assert json.loads(upstream.seen[0].body) == {"model": "tiny", "prompt": "hi"}
    refused = await client.post({**body, "prompt": "hi"}, "/tokenize", line_of_both)
    assert (refused.status, refused.code) == (400, "model_missing")
    assert "tiny" in refused.json()["error"]["message"]


async def test_unknown_model_names_the_known_ones_nearest_first(make_gateway: Any, connect: Any) -> None:
    gateway = await make_gateway()
    gateway.state.table.offer("e", table(models=("zebra", "llama-8b", "qwen-0.6b"), version=2))
    response = await (await connect(gateway)).post({"model": "lama-8b"})
    error = response.json()["error"]
    assert (response.status, error["param"], error["code"]) == (404, "model", "model_not_found")
    assert error["message"].index("llama-8b") < min(error["message"].index(m) for m in ("zebra", "qwen-0.6b"))


def test_a_long_unknown_name_among_many_is_compared_in_full_with_few(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    class Counting(difflib.SequenceMatcher[str]):
        def set_seq1(self, a: Sequence[str]) -> None:
            compared.append(str(a))
            super().set_seq1(a)

    monkeypatch.setattr(difflib, "SequenceMatcher", Counting)
    names = [f"organisation/model-{number}-instruct-of-some-length" for number in range(500)]
    refusal = error_responses.unknown_model("organisation/modle-77-instruct-of-some-length" + "x" * 200, names)
    assert "Served: organisation/model-77-instruct-of-some-length" in refusal.message
    assert len(set(compared)) <= 20


async def test_known_model_without_ready_endpoint_is_a_503_with_retry_after(make_gateway: Any, connect: Any) -> None:
    gateway = await make_gateway()
    gateway.state.table.offer("e", table(endpoint("http://127.0.0.1:1", ready=False), version=2))
    response = await (await connect(gateway)).post({"model": "tiny"})
    assert (response.status, response.code) == (503, "model_not_ready")
    assert int(response.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid_json"),
        (b'{"model": "tiny"', "invalid_json"),
        (b'["tiny"]', "invalid_json"),
        (b'{"model": "\xff\xfe"}', "invalid_json"),
        (b'{"model": "tiny", "deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
        (b'{"model": 7}', "invalid_type"),
    ],
)
async def test_bad_document_is_a_400(body: bytes, code: str, make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway("http://127.0.0.1:1"))
    response = await client.post(body)
    assert (response.status, response.code) == (400, code)
    assert (await client.get("/livez")).status == 200  # the connection goes on


@pytest.mark.parametrize(
    ("line", "status", "allow"),
    [
        ("GET /v1/chat/completions", 405, "POST"),
        ("DELETE /v1/models", 405, "GET, HEAD"),
        ("GET /", 404, None),
        ("GET /v1/embeddings", 405, "POST"),
        ("OPTIONS *", 404, None),
    ],
)
async def test_wrong_path_or_method_is_told(
    line: str, status: int, allow: str | None, make_gateway: Any, connect: Any
) -> None:
    client = await connect(await make_gateway())
    client.send(f"{line} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    response = await client.response()
    assert (response.status, response.headers.get("allow")) == (status, allow)
    assert response.json()["error"]["type"] in ("invalid_request_error", "not_found_error")


async def test_ready_says_why_not(make_gateway: Any, connect: Any) -> None:
    gateway = Gateway(config())
    await gateway.start()
    client = await connect(gateway)
    reasons = []
    for step in (
        lambda: None,
        lambda: gateway.state.table.offer("e", table()),
        lambda: gateway.state.table.offer("e", table(endpoint("http://127.0.0.1:1", ready=False), version=2)),
    ):
        step()
        response = await client.get("/readyz")
        reasons.append((response.status, response.json()["reason"]))
    assert reasons == [(503, "no endpoint table yet")] + [(503, "no ready endpoint of any model")] * 2
    gateway.state.table.offer("e", table(endpoint("http://127.0.0.1:1"), version=3))
    assert (await client.get("/readyz")).status == 200
    await gateway.steering.drain()
    draining = await client.get("/readyz")
    assert (draining.status, draining.json()["reason"]) == (503, "draining")
    assert draining.headers["connection"] == "close"
    assert await client.at_end()
    assert (await (await connect(gateway)).get("/livez")).status == 200
    gateway.stop(0.0)
    await gateway.stopped.wait()


async def test_head_is_get_without_a_body(make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway("http://127.0.0.1:1"))
    client.send(b"HEAD /readyz HTTP/1.1\r\nhost: x\r\n\r\n")
    status, headers = await client.head()
    assert status == 200 and int(headers["content-length"]) > 0
    assert (await client.get("/livez")).json() == {"alive": True}


async def test_request_before_the_table_waits_for_it(make_upstream: Any, connect: Any) -> None:
    upstream = await make_upstream()
    gateway = Gateway(config())
    await gateway.start()
    asked = asyncio.create_task((await connect(gateway)).post({"model": "tiny"}, CHAT))
    await asyncio.sleep(0.2)
    gateway.state.offer_table("e", table(endpoint(upstream.url)))
    assert (await asked).status == 200
    gateway.stop(0.0)
    await gateway.stopped.wait()


async def test_stop_before_the_table_answers_those_who_wait(connect: Any) -> None:
    gateway = Gateway(config())
    await gateway.start()
    asked = asyncio.create_task((await connect(gateway)).post({"model": "tiny"}, CHAT))
    await asyncio.sleep(0.2)
    gateway.stop(5.0)
    response = await asked
    assert (response.status, response.code) == (503, "gateway_stopping")
    await gateway.stopped.wait()


async def test_no_table_for_two_seconds_is_a_503(connect: Any) -> None:
    gateway = Gateway(config())
    await gateway.start()
    response = await (await connect(gateway)).post({"model": "tiny"}, CHAT)
    assert (response.status, response.code) == (503, "no_table")
    gateway.stop(0.0)
    await gateway.stopped.wait()
