"""Errors of engines that the client could not understand: what it gets instead, and which errors are passed on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from fake_upstream import Script, Seen, chunk
from gateway_lab import endpoint, post_bytes, settled, table

from longboat.core.policy import Policy, ResumePolicy

ABSENT = ('{"detail":"Not Found"}', '{"error":{"message":"Not Found","type":"NotFoundError","param":null,"code":404}}')


def answering(status: int, body: str, *, chunked: bool = False, lines: str = "") -> Script:
    async def serve(seen: Seen) -> None:
        head = f"HTTP/1.1 {status} No\r\ncontent-type: application/json\r\n{lines}".encode()
        if chunked:
            await seen.send(head + b"transfer-encoding: chunked\r\n\r\n" + chunk(body.encode()) + b"0\r\n\r\n")
        else:
            await seen.send(head + b"content-length: %d\r\n\r\n%b" % (len(body), body.encode()))

    return serve


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(
    ("status", "body"), [*((404, body) for body in ABSENT), (405, '{"detail":"Method Not Allowed"}')]
)
async def test_a_path_that_an_engine_lacks_is_said_of_the_model(
    status: int, body: str, chunked: bool, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream(answering(status, body, chunked=chunked))
    gateway = await make_gateway(upstream)
    client = await connect(gateway)
    for _ in range(2):
        response = await client.post({"model": "tiny", "input": "x"}, "/v1/embeddings")
        error = response.json()["error"]
        assert (response.status, error["code"], error["param"]) == (404, "path_not_offered", "model")
        assert error["message"].startswith("The model 'tiny' does not offer /v1/embeddings")
        assert "Use a model of another task" in error["message"]
        assert response.headers["x-request-id"]
    assert upstream.connections == 1  # it is used again
    state = settled(gateway)
    assert state.in_flight == 0
    assert {upstream.outstanding for upstream in state.table.upstreams()} == {0}


async def test_messages_get_it_in_anthropics_shape(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway(await make_upstream(answering(404, ABSENT[0]))))
    response = await client.post({"model": "tiny", "max_tokens": 1}, "/v1/messages")
    assert (response.status, response.json()["error"]["type"]) == (404, "not_found_error")


async def test_paths_that_are_switched_off_say_how_to_switch_them_on(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    body = {"error": {"message": "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to …"}}
    client = await connect(await make_gateway(await make_upstream(answering(403, json.dumps(body)))))
    response = await client.post({"model": "tiny", "messages": []}, "/v1/chat/completions/render")
    assert (response.status, response.code) == (404, "path_not_offered")
    assert "--enable-scale-out" in response.json()["error"]["message"]


@pytest.mark.parametrize("status", [401, 403])
async def test_an_engine_that_refuses_the_gateway_is_a_bad_gateway(
    status: int, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    gateway = await make_gateway(await make_upstream(answering(status, '{"error":"Unauthorized"}')))
    response = await (await connect(gateway)).post({"model": "tiny"})
    assert (response.status, response.code) == (502, "engine_refused_gateway")
    assert "Your own key is not the reason" in response.json()["error"]["message"]
    assert settled(gateway).in_flight == 0


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, '{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","code":404}}'),
        (404, '{"error":{"message":"Response with id \'resp_1\' not found.","code":404}}'),
        (404, "no json"),
        (404, '["Not Found"]'),
        (404, ""),
        (400, '{"detail":"Not Found"}'),
        (422, '{"detail":[{"msg":"Field required"}]}'),
    ],
)
async def test_other_errors_are_passed_on(
    status: int, body: str, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    client = await connect(await make_gateway(await make_upstream(answering(status, body))))
    response = await client.post({"model": "tiny"})
    assert (response.status, response.body.decode()) == (status, body)


VLLM = {
    "message": "This model's maximum context length is 8 tokens. However, …",
    "type": "BadRequestError",
    "code": 400,
}
TOO_LONG = (
    {"error": {**VLLM, "param": "input_text"}},
    {
        "error": {
            "message": "Requested token count exceeds the model's maximum context length of 8 tokens.",
            "code": 400,
        }
    },
    {"error": {"message": "request (9 tokens) exceeds the available context size (8 tokens)", "n_ctx": 8}},
)


@pytest.mark.parametrize("document", TOO_LONG)
async def test_a_prompt_that_is_too_long_has_the_code_that_clients_know(
    document: dict[str, Any], make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    client = await connect(await make_gateway(await make_upstream(answering(400, json.dumps(document)))))
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        response = await client.post({"model": "tiny"}, path)
        error = response.json()["error"]
        assert (response.status, error["code"], error["type"]) == (
            400,
            "context_length_exceeded",
            "invalid_request_error",
        )
        assert (error["message"], error["param"]) == (document["error"]["message"], document["error"].get("param"))
    error = (await client.post({"model": "tiny", "max_tokens": 1}, "/v1/messages")).json()["error"]
    assert error["message"] == f"prompt is too long: {document['error']['message']}"


FLAT = {"object": "error", "type": "BadRequestError", "code": 400}
"""An error of SGLang, but for its message."""


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_an_error_without_an_object_around_it_gets_one(
    status: int, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    document = {**FLAT, "message": "temperature must be …", "param": "temperature"}
    client = await connect(await make_gateway(await make_upstream(answering(status, json.dumps(document)))))
    response = await client.post({"model": "tiny"})
    error = response.json()["error"]
    assert (response.status, error["message"], error["param"]) == (status, "temperature must be …", "temperature")
    assert error["code"] == "engine_refused"


async def test_a_prompt_that_is_too_long_for_sglang_has_the_code_too(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    document = {**FLAT, "message": "The input (9 tokens) is longer than the model's context length (8 tokens)."}
    client = await connect(await make_gateway(await make_upstream(answering(400, json.dumps(document)))))
    response = await client.post({"model": "tiny"})
    assert (response.status, response.code) == (400, "context_length_exceeded")
    assert response.json()["error"]["message"] == document["message"]


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(
    "document",
    [
        {"error": {"message": "1 validation error", "type": "Bad Request", "param": None, "code": 400}},
        {"type": "error", "error": {"message": "1 validation error", "type": "BadRequestError"}},
    ],
)
async def test_errors_of_messages_have_anthropics_shape(
    document: dict[str, Any], status: int, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    client = await connect(await make_gateway(await make_upstream(answering(status, json.dumps(document)))))
    response = await client.post({"model": "tiny", "max_tokens": 1}, "/v1/messages")
    told = {"type": "invalid_request_error", "message": "1 validation error"}
    assert response.status == status
    assert response.json() == {"type": "error", "error": told, "request_id": response.headers["x-request-id"]}


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/v1/chat/completions", {**VLLM, "code": "context_length_exceeded"}),
        (
            "/v1/messages",
            {"type": "invalid_request_error", "message": "prompt is too long: the model's context length"},
        ),
        ("/v1/messages", {"type": "invalid_request_error", "message": "max_tokens: Field required"}),
        ("/v1/messages", {"type": "not_found_error", "message": "model: x"}),
    ],
)
async def test_errors_in_the_words_of_the_api_keep_their_bytes(
    path: str, error: dict[str, Any], make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    body = json.dumps({"type": "error", "error": error, "request_id": "the engine's"})
    client = await connect(await make_gateway(await make_upstream(answering(400, body))))
    assert (await client.post({"model": "tiny"}, path)).body.decode() == body


WAITS = Policy(resume=ResumePolicy(comment_s=0.2))


async def told_late(gateway: Any, upstream: Any, client: Any) -> bytes:
    """Return what follows in a stream that waited until its model had this engine."""
    client.send(post_bytes({"model": "tiny", "messages": [], "stream": True}))
    head = await asyncio.wait_for(client.reader.readuntil(b": waiting"), 20)
    assert head.startswith(b"HTTP/1.1 200")
    gateway.state.offer_table("e", table(endpoint(upstream), version=2))
    rest: bytes = await asyncio.wait_for(client.reader.readuntil(b"0\r\n\r\n"), 20)
    return rest


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, '{"error":{"message":"top_p must be at most 1","code":400}}', "top_p must be at most 1"),
        (429, '{"detail":"Busy."}', '"Busy. Try again in 7 s."'),
        (500, "<html>", "The engine answered 500"),
        (200, '{"choices":[]}', "The engine answered 200 where a stream was expected"),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
async def test_an_error_for_a_stream_that_waited_is_told_once(
    chunked: bool, status: int, body: str, message: str, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    lines = "retry-after: 7\r\n" if status == 429 else ""
    upstream = await make_upstream(answering(status, body, chunked=chunked, lines=lines))
    gateway = await make_gateway(policy=WAITS)
    rest = await told_late(gateway, upstream, await connect(gateway))
    assert message.encode() in rest
    assert b"engine_refused" in rest
    assert len(upstream.seen) == (3 if status == 500 else 1), "of 500 and above, other tries may help"
    assert {upstream.outstanding for upstream in settled(gateway).table.upstreams()} == {0}


async def test_an_engine_that_failed_before_is_trusted_again_after_such_an_error(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    async def serve(seen: Seen) -> None:
        if len(upstream.seen) == 1:
            seen.writer.transport.abort()
        else:
            await answering(400, '{"detail":"no"}')(seen)

    upstream = await make_upstream(serve)
    gateway = await make_gateway(policy=WAITS)
    assert b"engine_refused" in await told_late(gateway, upstream, await connect(gateway))
    assert len(upstream.seen) > 1
    assert all(found.breaker.closed for found in gateway.state.table.upstreams())
