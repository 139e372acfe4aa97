"""The OpenAPI document: it is well formed, and says what the gateway does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from gateway_lab import keyed

from longboat.core.policy import TenantPolicy
from longboat.gateway.api.apis import APIS, KNOWN_PATHS, OWN_PATHS
from longboat.gateway.api.openapi import openapi_document
from longboat.gateway.http.responses import anthropic_error_document, error_document

METHODS = ("get", "head", "post", "delete")


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in openapi_document()["paths"].items():
        for method in METHODS:
            if method in item:
                yield path, method, item[method]


def test_it_has_the_paths_of_the_table_and_no_others() -> None:
    assert set(openapi_document()["paths"]) == set(KNOWN_PATHS)
    methods = {(path, method) for path, method, _ in operations()}
    relayed = {(path.decode(), "post") for path in APIS}
    assert methods == relayed | {(path, verb.lower()) for path, (verbs, _) in OWN_PATHS.items() for verb in verbs}


def test_it_has_the_shape_that_the_specification_requires() -> None:
    document = openapi_document()
    assert document["openapi"].startswith("3.1.")
    assert {"title", "version"} <= document["info"].keys()
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(ids) == len(set(ids))
    for path, method, operation in operations():
        assert operation["responses"] and all("description" in r for r in operation["responses"].values())
        item = document["paths"][path]
        named = {p["name"] for p in item.get("parameters", ()) if p["in"] == "path"}
        assert named == set(re.findall(r"\{(.*?)\}", path))
        assert all(p["required"] for p in item.get("parameters", ()) if p["in"] == "path")
        assert "requestBody" not in operation or (method == "post" and operation["requestBody"]["content"])


def test_its_references_lead_somewhere() -> None:
    document = openapi_document()
    schemes = document["components"]["securitySchemes"]
    assert all(name in schemes for requirement in document["security"] for name in requirement)
    for reference in re.findall(r"'\$ref': '#/components/schemas/(\w+)'", repr(document)):
        assert reference in document["components"]["schemas"]


def test_errors_have_the_shape_that_it_describes() -> None:
    schemas = openapi_document()["components"]["schemas"]
    made = {"Error": error_document(404, "m", "c"), "AnthropicError": anthropic_error_document(404, "m", "id")}
    for name, error in made.items():
        assert set(schemas[name]["required"]) == error.keys()
        assert set(schemas[name]["properties"]["error"]["required"]) == error["error"].keys()


@pytest.mark.parametrize("path", sorted(OWN_PATHS))
async def test_each_own_path_of_it_is_there(path: str, make_gateway: Any, connect: Any) -> None:
    policy, (line,) = keyed(TenantPolicy(name="a"))
    gateway = await make_gateway("http://127.0.0.1:1", policy=policy)
    for method in OWN_PATHS[path][0]:
        client, target = await connect(gateway), path.format(id="tiny")
        client.send(f"{method} {target} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n{line}\r\n".encode())
        status, _ = await client.head()
        assert status not in (404, 405) or "{id}" in path, (method, path)


async def test_it_is_served_to_all(make_gateway: Any, connect: Any) -> None:
    policy, _ = keyed(TenantPolicy(name="a"))
    client = await connect(await make_gateway("http://127.0.0.1:1", policy=policy))
    response = await client.get("/openapi.json")
    assert (response.status, response.json()) == (200, openapi_document())
