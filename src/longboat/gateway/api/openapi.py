"""The OpenAPI document of the gateway, made from the table of paths."""

from __future__ import annotations

import functools
import re
from typing import Any

from longboat import __version__
from longboat.gateway.api.apis import APIS, OWN_PATHS, Api
from longboat.gateway.api.body_fields import BodyKind
from longboat.gateway.http.responses import ErrorStyle

__all__ = ("openapi_document",)

_PARAMETER = re.compile(r"\{([a-z]+)\}")
_OPEN_PATHS = frozenset(("/health", "/ping", "/livez", "/readyz", "/version", "/openapi.json"))
_PLAIN_TEXT = frozenset(("/metrics",))
_EMPTY = frozenset(("/health", "/ping"))
_UNREADY = frozenset(("/health", "/ping", "/readyz"))

_REQUIRED = {
    BodyKind.CHAT: ("messages",),
    BodyKind.BATCH: ("messages",),
    BodyKind.MESSAGES: ("messages", "max_tokens"),
    BodyKind.COUNT_TOKENS: ("messages",),
    BodyKind.COMPLETIONS: ("prompt",),
    BodyKind.RESPONSES: ("input",),
    BodyKind.RERANK: ("query", "documents"),
    BodyKind.DETOKENIZE: ("tokens",),
    BodyKind.TGI: ("inputs",),
    BodyKind.GENERATE: ("token_ids", "sampling_params"),
}
"""The fields that engines require beside ``model``, where each request of the kind needs the same."""

_NUMBERS = frozenset(("max_tokens",))
_LISTS = frozenset(("messages", "documents", "tokens", "token_ids"))


@functools.cache
def openapi_document() -> dict[str, Any]:
    """Return the document. It describes what the gateway itself reads; engines define the other fields of bodies."""
    relayed = {path.decode(): {"post": _relayed(path.decode(), api)} for path, api in APIS.items()}
    own = {
        path: {"parameters": _parameters(path), **{verb.lower(): _own(path, verb, summary) for verb in methods}}
        for path, (methods, summary) in OWN_PATHS.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Longboat", "version": __version__, "summary": "One address for all models of a fleet"},
        "paths": {**relayed, **own},
        "components": {"securitySchemes": _SECURITY, "schemas": _SCHEMAS},
        "security": [{"bearer": []}, {"xApiKey": []}, {"apiKey": []}],
    }


def _relayed(path: str, api: Api) -> dict[str, Any]:
    form = api.body is BodyKind.FORM
    error = "AnthropicError" if api.style is ErrorStyle.ANTHROPIC else "Error"
    content: dict[str, Any] = {"application/json": {"schema": {"type": "object"}}}
    if api.weighs_completion and api.body is not BodyKind.BATCH:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    kind = "multipart/form-data" if form else "application/json"
    return {
        "summary": api.summary,
        "operationId": _operation_id("post", path),
        "requestBody": {"required": True, "content": {kind: {"schema": _body_schema(api)}}},
        "responses": {
            "200": {"description": "The engine's response", "content": content},
            "default": _error_response(error),
        },
    }


def _body_schema(api: Api) -> dict[str, Any]:
    required = ("file",) if api.body is BodyKind.FORM else _REQUIRED.get(api.body, ())
    properties: dict[str, Any] = {"model": {"type": "string", "description": "A model or an alias of GET /v1/models"}}
    for name in required:
        properties[name] = {"type": "integer"} if name in _NUMBERS else {"type": "array"} if name in _LISTS else {}
    if api.weighs_completion and api.body is not BodyKind.BATCH:
        properties["stream"] = {"type": "boolean", "default": False}
    return {"type": "object", "required": ["model", *required], "properties": properties}


def _own(path: str, method: str, summary: str) -> dict[str, Any]:
    kind = "text/plain" if path in _PLAIN_TEXT else "application/json"
    schema = {"type": "string" if path in _PLAIN_TEXT else "object"}
    success: dict[str, Any] = {"description": summary}
    if path not in _EMPTY and method != "HEAD":
        success["content"] = {kind: {"schema": schema}}
    responses: dict[str, Any] = {"200": success, "default": _error_response("Error")}
    if path in _UNREADY:
        responses["503"] = {"description": "No model can be served, or the gateway is draining"}
    operation = {"summary": summary, "operationId": _operation_id(method.lower(), path), "responses": responses}
    if path in _OPEN_PATHS:
        operation["security"] = []
    if method == "POST" and path in _BODIES:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _BODIES[path]}}}
    return operation


def _parameters(path: str) -> list[dict[str, Any]]:
    names = [(name, "path") for name in _PARAMETER.findall(path)]
    if path == "/tokenizer_info":
        names.append(("model", "query"))
    return [
        {"name": name, "in": where, "required": where == "path", "schema": {"type": "string"}} for name, where in names
    ]


def _operation_id(method: str, path: str) -> str:
    return f"{method}_{re.sub(r'[^a-z0-9]+', '_', path.lower()).strip('_')}"


def _error_response(schema: str) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{schema}"}
    return {"description": "An error", "content": {"application/json": {"schema": reference}}}


_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "xApiKey": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "Api-Key"},
}

_TEXT = {"type": "string"}
_NAME = {"type": "string", "minLength": 1, "maxLength": 256}
_SOURCE = {"type": "string", "minLength": 1, "maxLength": 4096}
_MONEY = {"type": "number", "minimum": 0, "maximum": 1_000_000}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_SCHEMAS = {
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {"message": _TEXT, "type": _TEXT, "param": _TEXT_OR_NULL, "code": _TEXT},
            }
        },
    },
    "AnthropicError": {
        "type": "object",
        "required": ["type", "error", "request_id"],
        "properties": {
            "type": {"const": "error"},
            "error": {
                "type": "object",
                "required": ["type", "message"],
                "properties": {"type": _TEXT, "message": _TEXT},
            },
            "request_id": _TEXT,
        },
    },
}


def _form(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties, "additionalProperties": False}


_BODIES = {
    "/admin/v1/adapters": _form(
        "model source", model=_NAME, source=_SOURCE, name=_NAME, tenants={"type": "array", "items": _NAME}
    ),
    "/admin/v1/models": _form(
        "source",
        source={
            **_SOURCE,
            "description": "As in the fleet file: hf:ORG/NAME, builtin:NAME, a folder",
        },
        name=_NAME,
        engine={"type": "string", "maxLength": 64},
        replicas={"type": "integer", "minimum": 1, "maximum": 10_000, "default": 1},
        context={"type": "integer", "minimum": 1, "maximum": 100_000_000},
        cpus={"type": "number", "exclusiveMinimum": 0, "maximum": 1024, "description": "Of one rank"},
        price={
            **_form(
                "input_per_million output_per_million",
                input_per_million=_MONEY,
                output_per_million=_MONEY,
                currency={"type": "string", "maxLength": 3, "default": "USD"},
            ),
            "description": "Of a million tokens, as in gateway.prices of the fleet file",
        },
    ),
    "/admin/v1/models/{id}/scale": _form(
        "replicas", replicas={"oneOf": [{"type": "integer", "minimum": 1, "maximum": 100_000}, {"const": "auto"}]}
    ),
    "/admin/v1/kill-engine": _form("replica", replica=_NAME),
}
"""Bodies that the gateway itself reads: path → schema."""
