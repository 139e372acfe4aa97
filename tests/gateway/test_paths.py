"""What targets mean, and which paths are refused with which advice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_upstream import OK_JSON, Seen
from gateway_lab import keyed

from longboat.core.policy import TenantPolicy
from longboat.gateway.api.apis import APIS, KNOWN_PATHS
from longboat.gateway.api.paths import NOT_RELAYED, own_target, unknown_path

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("target", "meant", "model"),
    [
        (b"/v1/models", b"/v1/models", b""),
        (b"/v1/models?a=b", b"/v1/models?a=b", b""),
        (b"http://host:8000/v1/models?a=b", b"/v1/models?a=b", b""),
        (b"HTTPS://[::1]/v1/models", b"/v1/models", b""),
        (b"http://host", b"/", b""),
        (b"/v1/models/", b"/v1/models", b""),
        (b"/v1/chat/completions/?a=b", b"/v1/chat/completions?a=b", b""),
        (b"/v1/models/org/name/", b"/v1/models/org/name/", b""),
        (b"/openai/v1/responses?api-version=preview", b"/v1/responses", b""),
        (b"/openai/v1/models?api-version=1&a=b", b"/v1/models?a=b", b""),
        (b"/openai/models?a=b&api-version=1", b"/v1/models?a=b", b""),
        (b"/openai/deployments/tiny/chat/completions?api-version=1", b"/v1/chat/completions", b"tiny"),
        (b"/openai/deployments/org%2Fbig/embeddings", b"/v1/embeddings", b"org/big"),
        (b"*", b"*", b""),
        (b"", b"", b""),
    ],
)
def test_targets_lead_to_paths(target: bytes, meant: bytes, model: bytes) -> None:
    assert own_target(target) == (meant, model)


@pytest.mark.parametrize("path", KNOWN_PATHS)
def test_paths_of_the_table_stay_as_they_are(path: str) -> None:
    assert own_target(path.encode()) == (path.encode(), b"")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/v1/chat/completion", "Did you mean /v1/chat/completions?"),
        ("/v1/embedding", "Did you mean /v1/embeddings?"),
        ("/chat/completions", "Use /v1/chat/completions: the client's base URL probably lacks /v1"),
        ("/v1/v1/chat/completions", "The client's base URL is wrong: it ends with /v1"),
        ("//v1/chat/completions", "The client's base URL is wrong: it ends with a slash"),
        ("/nothing/like/it", "GET /openapi.json describes all paths."),
    ],
)
def test_an_unknown_path_names_the_nearest_or_the_mistake(path: str, says: str) -> None:
    refusal = unknown_path(path)
    assert (refusal.status, refusal.code) == (404, "unknown_url")
    assert says in refusal.message
    assert len(refusal.message) < 250


def test_a_long_path_is_cut() -> None:
    assert len(unknown_path("/v1/" + "x" * 10_000).message) < 300


@pytest.mark.parametrize("path", sorted(NOT_RELAYED))
async def test_paths_that_are_not_relayed_say_why_and_what_to_use(path: str, make_gateway: Any, connect: Any) -> None:
    response = await (await connect(await make_gateway("http://127.0.0.1:1"))).post({"model": "tiny"}, path)
    assert (response.status, response.code) == (404, "path_not_relayed")
    message = response.json()["error"]["message"]
    assert message.startswith(f"{path} is not relayed, because ")
    assert "Use " in message
    instead = NOT_RELAYED[path][1].split(" ")[0].rstrip(",")
    assert not instead.startswith("/") or instead in KNOWN_PATHS


async def test_absolute_form_and_trailing_slash_list_the_models(make_gateway: Any, connect: Any) -> None:
    client = await connect(await make_gateway("http://127.0.0.1:1"))
    for target in ("http://anywhere/v1/models", "/v1/models/", "/openai/v1/models?api-version=2024-10-21"):
        response = await client.get(target)
        assert (response.status, [m["id"] for m in response.json()["data"]]) == (200, ["tiny"])


async def test_azures_deployment_is_the_model_whatever_the_body_names(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream))
    target = "/openai/deployments/tiny/chat/completions?api-version=2024-10-21"
    for body in ({}, {"messages": []}, {"model": "tiny", "messages": []}):
        for _ in range(2):  # the second time its head is known
            assert (await client.post(body, target)).status == 200
            assert upstream.seen[-1].head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
            assert json.loads(upstream.seen[-1].body) == {"model": "tiny", **body}
    for named in (None, "", "gpt-5", "other"):
        assert (await client.post({"user": "u", "model": named, "messages": []}, target)).status == 200
        assert json.loads(upstream.seen[-1].body) == {"user": "u", "model": "tiny", "messages": []}
    other = await client.post({"model": "tiny"}, target.replace("tiny", "other"))
    assert (other.status, other.code) == (404, "model_not_found")


async def test_azures_deployment_names_the_model_of_a_form(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream))
    body = b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\nsound\r\n--B--\r\n'
    head = "POST /openai/deployments/tiny/audio/transcriptions HTTP/1.1\r\nhost: x\r\n"
    head += f"content-type: multipart/form-data; boundary=B\r\ncontent-length: {len(body)}\r\n\r\n"
    client.send(head.encode() + body)
    assert (await client.response()).status == 200
    assert upstream.seen[0].head.startswith(b"POST /v1/audio/transcriptions HTTP/1.1\r\n")
    assert b'name="model"\r\n\r\ntiny\r\n' in upstream.seen[0].body
    assert upstream.seen[0].body.endswith(body)
    empty = b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\n\r\n' + body
    client.send(head.replace(str(len(body)), str(len(empty))).encode() + empty)
    assert (await client.response()).status == 200
    assert upstream.seen[1].body.count(b'name="model"') == upstream.seen[1].body.count(b"\r\ntiny\r\n") == 1
    another = empty.replace(b"\r\n\r\n\r\n", b"\r\n\r\nother\r\n", 1)
    client.send(head.replace(str(len(body)), str(len(another))).encode() + another)
    assert (await client.response()).status == 200
    assert upstream.seen[2].body == upstream.seen[1].body


async def test_azures_key_opens_azures_paths(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    policy, (line,) = keyed(TenantPolicy(name="a"))
    client = await connect(await make_gateway(await make_upstream(), policy=policy))
    key = line.removeprefix("authorization: Bearer ")
    path = "/openai/deployments/tiny/chat/completions"
    assert (await client.post({"messages": []}, path, f"api-key: {key}")).status == 200
    assert (await client.post({"messages": []}, path)).status == 401


@pytest.mark.parametrize(("coding", "status"), [("identity", 200), ("Identity", 200), ("", 200), ("gzip", 415)])
async def test_a_content_encoding_that_changes_nothing_is_taken(
    coding: str, status: int, make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream))
    response = await client.post({"model": "tiny"}, headers=f"content-encoding: {coding}\r\n")
    assert response.status == status
    assert all(seen.header("content-encoding") is None for seen in upstream.seen)


async def test_an_engines_server_header_is_withheld(make_upstream: Any, make_gateway: Any, connect: Any) -> None:
    async def serve(seen: Seen) -> None:
        await seen.send(OK_JSON.replace(b"\r\n\r\n", b"\r\nserver: uvicorn\r\nx-kept: 1\r\n\r\n"))

    client = await connect(await make_gateway(await make_upstream(serve)))
    for _ in range(2):
        headers = (await client.post({"model": "tiny"})).headers
        assert "server" not in headers and headers["x-kept"] == "1"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses/input_tokens", {"input": "hello"}),
        ("/v1/responses/render", {"input": "hello"}),
        ("/v1/chat/completions/render", {"messages": []}),
        ("/v1/completions/render", {"prompt": "hello"}),
        ("/v1/messages/render", {"messages": [], "max_tokens": 1}),
        ("/v1/chat/completions/batch", {"messages": [[{"role": "user", "content": "hi"}]]}),
        ("/inference/v1/generate", {"token_ids": [1, 2], "sampling_params": {"max_tokens": 4}}),
    ],
)
async def test_further_paths_of_vllm_are_relayed(
    path: str, body: dict[str, Any], make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream))
    assert (await client.post({"model": "tiny", **body}, path)).status == 200
    assert upstream.seen[0].head.startswith(f"POST {path} HTTP/1.1\r\n".encode())
    assert json.loads(upstream.seen[0].body) == {"model": "tiny", **body}
    assert (await client.get(path)).headers["allow"] == "POST"
    assert path.encode() in APIS


async def test_what_an_engine_rendered_can_be_generated_from(
    make_upstream: Any, make_gateway: Any, connect: Any
) -> None:
    policy, (line,) = keyed(TenantPolicy(name="a"), salt="s")
    upstream = await make_upstream()
    client = await connect(await make_gateway(upstream, policy=policy))
    rendered = {
        "model": "tiny",
        "request_id": "x",
        "token_ids": [1, 2],
        "sampling_params": {"max_tokens": 4, "n": 2},
        "priority": 0,
        "cache_salt": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "features": None,
    }
    assert (await client.post(rendered, "/inference/v1/generate", line)).status == 200
    assert json.loads(upstream.seen[0].body)["cache_salt"]
    for change in ({"sampling_params": {"extra_args": {"a": 1}}}, {"priority": 1}, {"features": {"mm_hashes": {}}}):
        refused = await client.post({**rendered, **change}, "/inference/v1/generate", line)
        assert (refused.status, refused.code) == (400, "fleet_field")
