"""``longboat chat``: a conversation in the terminal, streamed through the gateway."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import httpx

from longboat.cli.chat.lasting_answer import LastingAnswer, Refused
from longboat.cli.shared.gateway_client import gateway_client
from longboat.core.errors import ClusterError, EngineError, UserInputError

__all__ = ("ask", "gateway_urls", "run_chat", "stream_chat")

KEY_HINT = "longboat keys create --tenant NAME makes a key; put it into the environment variable LONGBOAT_API_KEY"

Message = dict[str, str]


def run_chat(model: str | None, *, prompt: str | None, urls: Sequence[str], max_tokens: int) -> None:
    """Talk until the input ends, or ask ``prompt`` once.

    urls: of gateways; where it is empty, those that can be reached. Where the input is not a terminal, each of its
    lines is a question, and only answers are printed.
    """
    from longboat.cli.shared.gateway_replies import base_of

    bases = [base_of(url) for url in urls] or gateway_urls()
    name = model or _first_model(bases)
    messages: list[Message] = []
    if prompt is not None:
        ask(bases, name, [{"role": "user", "content": prompt}], max_tokens)
        return
    for line in _questions(f"{name} at {bases[0]}; an empty line or Ctrl-D ends it"):
        messages.append({"role": "user", "content": line})
        messages.append({"role": "assistant", "content": ask(bases, name, messages, max_tokens)})


def ask(bases: Sequence[str], model: str, messages: list[Message], max_tokens: int) -> str:
    """Print the answer as it streams in, and return it."""
    answer = ""
    for piece in stream_chat(bases, model, messages, max_tokens):
        print(piece, end="", flush=True)
        answer += piece
    print(flush=True)
    return answer


def stream_chat(bases: Sequence[str], model: str, messages: list[Message], max_tokens: int) -> Iterator[str]:
    """Yield a chat completion as it streams in. When its gateway goes away, the next of ``bases`` gives the rest.

    Raises EngineError with the gateway's own words when it refuses, ClusterError when none is there.
    """
    body = {"model": model, "messages": messages, "stream": True, "max_tokens": max_tokens, "temperature": 0}
    try:
        with gateway_client(bases, timeout_s=120.0) as client:
            answer = LastingAnswer(client, bases, "/v1/chat/completions", json.dumps(body).encode())
            for data in answer:
                yield from _pieces(data)
    except Refused as refused:
        if refused.status in (401, 403):
            raise UserInputError(_refusal(refused.body), hint=KEY_HINT) from None
        if refused.status == 404:
            hint = f"models there: {', '.join(_models(bases)) or 'none'}"
            raise UserInputError(_refusal(refused.body), hint=hint) from None
        if refused.status in (400, 413, 422):
            raise UserInputError(_refusal(refused.body), hint="change the request: longboat chat --help") from None
        raise EngineError(_refusal(refused.body), hint="longboat status shows the models and their state") from None


def gateway_urls() -> list[str]:
    """Return the addresses of the gateways that can be reached from here, this node's first."""
    from longboat.cli.shared.cluster_at_hand import connect_quickly
    from longboat.cli.shared.gateway_choice import gateway_here, gateways_here

    with connect_quickly() as session:
        report = session.report()
    gateways = report.gateways if report else ()
    return [gateway.url for gateway in gateways_here(gateways) or [gateway_here(gateways)]]


def _pieces(data: str) -> Iterator[str]:
    event: dict[str, Any] = json.loads(data)
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


def _first_model(bases: Sequence[str]) -> str:
    if models := _models(bases):
        return models[0]
    raise UserInputError("the fleet has no model", hint="longboat up FILE starts one")


def _models(bases: Sequence[str]) -> list[str]:
    """Return the models of the first gateway that answers. Raises ClusterError where none does."""
    for base in bases:
        try:
            with gateway_client([base], timeout_s=10.0) as client:
                response = client.get(f"{base}/v1/models")
            if response.status_code in (401, 403):
                raise UserInputError(_refusal(response.content), hint=KEY_HINT)
            return [str(model["id"]) for model in response.json()["data"]]
        except httpx.HTTPError as error:
            failure = str(error)
        except (ValueError, KeyError, TypeError):
            failure = "what is there lists no models at /v1/models"
    hint = "longboat status shows the gateways of the fleet; --url names another address"
    raise ClusterError(f"no answer from the gateway at {' or '.join(bases)}: {failure}", hint=hint)


def _questions(greeting: str) -> Iterator[str]:
    """Yield what is asked: with a prompt on a terminal, until an empty line; else every line that is not empty."""
    if not sys.stdin.isatty():
        yield from filter(None, map(str.strip, sys.stdin))
        return
    print(greeting, file=sys.stderr)
    with contextlib.suppress(EOFError):
        while line := input("> ").strip():
            yield line
