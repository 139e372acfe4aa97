"""``longboat chat``: a conversation in the terminal, streamed through the gateway."""

from __future__ import annotations

import json
import os
import ssl
import sys
from collections.abc import Iterator
from typing import Any

import httpx

from longboat.core.errors import ClusterError, EngineError, UserInputError

__all__ = ("ask", "gateway_url", "run_chat", "stream_chat")

KEY_HINT = "longboat keys create --tenant NAME makes a key; put it into the environment variable LONGBOAT_API_KEY"

Message = dict[str, str]


def run_chat(model: str | None, *, prompt: str | None, url: str | None, max_tokens: int) -> None:
    """Talk until end of input, or ask ``prompt`` once."""
    base = url or gateway_url()
    name = model or _first_model(base)
    if prompt is not None:
        ask(base, name, [{"role": "user", "content": prompt}], max_tokens)
        return
    print(f"{name} at {base}; an empty line or Ctrl-D ends it", file=sys.stderr)
    messages: list[Message] = []
    while line := _read_line():
        messages.append({"role": "user", "content": line})
        messages.append({"role": "assistant", "content": ask(base, name, messages, max_tokens)})


def ask(base: str, model: str, messages: list[Message], max_tokens: int) -> str:
    """Print the answer as it streams in, and return it."""
    answer = ""
    for piece in stream_chat(base, model, messages, max_tokens):
        print(piece, end="", flush=True)
        answer += piece
    print(flush=True)
    return answer


def stream_chat(base: str, model: str, messages: list[Message], max_tokens: int) -> Iterator[str]:
    """Text pieces of a streamed chat completion.

    Raises EngineError with the gateway's own words when it refuses, ClusterError when it is not there.
    """
    body = {"model": model, "messages": messages, "stream": True, "max_tokens": max_tokens, "temperature": 0}
    try:
        with (
            _client(base, timeout_s=120.0) as client,
            client.stream("POST", f"{base}/v1/chat/completions", json=body) as response,
        ):
            if response.status_code in (401, 403):
                raise UserInputError(_refusal(response.read()), hint=KEY_HINT)
            if response.status_code != 200:
                raise EngineError(_refusal(response.read()), hint="longboat status shows the models and their state")
            yield from _pieces(response.iter_lines())
    except httpx.HTTPError as error:
        raise ClusterError(f"no answer from the gateway at {base}: {error}", hint="longboat status") from error


def _client(base: str, timeout_s: float) -> httpx.Client:
    """With the key in LONGBOAT_API_KEY, and the authorities in SSL_CERT_FILE where that is set."""
    key = os.environ.get("LONGBOAT_API_KEY", "")
    verify = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE")) if base.startswith("https") else False
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(headers=headers, verify=verify, timeout=timeout_s, trust_env=False)


def gateway_url() -> str:
    """Address of this node's gateway, else of any that can be reached from here."""
    from longboat.cli.cluster_at_hand import connect
    from longboat.cli.gateway_choice import gateway_here

    with connect() as session:
        report = session.report()
    return gateway_here(report.gateways if report else ()).url


def _pieces(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event: dict[str, Any] = json.loads(line[6:])
        if "error" in event:
            raise EngineError(str(event["error"].get("message", event["error"])), hint="longboat status")
        for choice in event.get("choices", ()):
            delta = choice.get("delta", {})
            yield delta.get("reasoning") or delta.get("reasoning_content") or delta.get("content") or ""


def _refusal(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:500]


def _first_model(base: str) -> str:
    try:
        with _client(base, timeout_s=10.0) as client:
            response = client.get(f"{base}/v1/models")
        if response.status_code in (401, 403):
            raise UserInputError(_refusal(response.content), hint=KEY_HINT)
        models = response.json()["data"]
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise ClusterError(f"no answer from the gateway at {base}: {error}", hint="longboat status") from error
    if not models:
        raise UserInputError("the fleet has no model", hint="longboat up FILE")
    return str(models[0]["id"])


def _read_line() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        return ""
