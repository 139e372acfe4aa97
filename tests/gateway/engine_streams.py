"""Builds the event streams of an engine that keeps a journal, as vLLM 0.32 shapes them, out of a script of tokens.

One script can be sent in many ways: whole from the start, or by another engine that was given the first tokens, with
ids, times and places of the cuts that are its own. What a client makes of all of them must be the same.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

GARBAGE = -77.5  # the log-probability that an engine tells of a token that it was given


@dataclass(frozen=True, kw_only=True)
class Token:
    """pieces: (channel, text) that the answer grows by with this token; channels: reasoning, content, 0, 1 … (tools)"""

    id: int
    pieces: tuple[tuple[str | int, str], ...] = ()
    logprob: float = -0.5


@dataclass(frozen=True, kw_only=True)
class Choice:
    tokens: tuple[Token, ...]
    finish: str = "stop"
    stop_reason: str | int | None = None


@dataclass(frozen=True, kw_only=True)
class Script:
    """What the model says. tools: names, by the channel that they are called in"""

    choices: tuple[Choice, ...]
    tools: tuple[str, ...] = ()
    logprobs: bool = False
    token_ids: bool = False
    usage: str = "end"  # "", "end", "continuous"
    parsed: bool = True  # events that say nothing are left out
    echo: str = ""
    prompt_tokens: int = 7


@dataclass(kw_only=True)
class Engine:
    """One that answers. seed: of everything that is its own"""

    seed: int
    carried: tuple[int, ...] | None = None
    """Tokens per choice that it was given; None: none at all."""
    replays: bool = False
    joined: bool = False
    """Whether ids of all choices go out with any event, or only those that the event says something of."""
    largest: int = 3
    """Tokens in one output at most."""
    one_by_one: bool = False
    """Whether tokens that it was given come out as if it had made them, or together with the first one that it made."""
    fingerprint: str = "fp"
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def own_id(self, prefix: str) -> str:
        return f"{prefix}{self.rng.getrandbits(64):016x}"

    def prior(self, choice: int) -> int:
        return 0 if self.carried is None else self.carried[choice]

    def outputs(self, script: Script) -> list[list[tuple[int, int, int]]]:
        """Steps of the engine: (choice, start, end) of tokens that come out together."""
        at = [0] * len(script.choices)
        steps = []
        while open_choices := [i for i, choice in enumerate(script.choices) if at[i] < len(choice.tokens)]:
            step = []
            for i in self.rng.sample(open_choices, self.rng.randint(1, len(open_choices))):
                size = self.rng.randint(1, self.largest)
                if at[i] == 0 and not self.replays and not self.one_by_one:
                    size += self.prior(i)
                end = min(at[i] + size, len(script.choices[i].tokens))
                step.append((i, at[i], end))
                at[i] = end
            steps.append(step)
        return steps

    def logprob(self, script: Script, choice: int, at: int) -> dict[str, Any]:
        token = script.choices[choice].tokens[at]
        given = at < self.prior(choice) and not self.replays
        text = "".join(text for _, text in token.pieces) or f"<{token.id}>"
        return {"token": "?", "logprob": GARBAGE} if given else {"token": text, "logprob": token.logprob}


class Wire:
    """Writes events with the journal's lines; each is one chunk."""

    def __init__(self, engine: Engine, num_choices: int) -> None:
        self.chunks: list[bytes] = []
        self.joined = engine.joined
        self._untold: dict[int, list[int]] = {}
        self._counts = [0] * num_choices

    def note(self, choice: int, ids: Iterable[int]) -> None:
        self._untold.setdefault(choice, []).extend(ids)

    def send(self, data: object, *, name: str = "", choice: int | None = None, bare: bool = False) -> None:
        lines = []
        for index in sorted(self._untold):
            if not bare and (self.joined or choice in (None, index)):
                ids = self._untold.pop(index)
                self._counts[index] += len(ids)
                lines.append(f": ids {index} {','.join(map(str, ids))}\n")
        lines.append(f"id: {'.'.join(map(str, self._counts))}\n")
        if name:
            lines.append(f"event: {name}\n")
        self.chunks.append(f"{''.join(lines)}data: {_json(data)}\n\n".encode())

    def done(self) -> None:
        self.chunks.append(b"data: [DONE]\n\n")


def _json(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def merged(script: Script, choice: int, start: int, end: int) -> list[tuple[str | int, str]]:
    """What tokens say together: one text per channel, in order of appearance."""
    texts: dict[str | int, str] = {}
    for token in script.choices[choice].tokens[start:end]:
        for channel, text in token.pieces:
            texts[channel] = texts.get(channel, "") + text
    return list(texts.items())


def chat(script: Script, engine: Engine) -> list[bytes]:
    """The chunks of a chat stream."""
    wire = Wire(engine, len(script.choices))
    head = {
        "id": engine.own_id("chatcmpl-"),
        "object": "chat.completion.chunk",
        "created": engine.rng.randrange(10**9),
        "model": "m",
    }
    made = [0] * len(script.choices)
    called: list[dict[str | int, str]] = [{} for _ in script.choices]
    for number, step in enumerate(engine.outputs(script)):
        for index, start, end in step:
            wire.note(index, [token.id for token in script.choices[index].tokens[start:end]])
        if number == 0:
            _chat_starts(wire, script, head)
        for index, start, end in step:
            made[index] += end - start
            choice = script.choices[index]
            ends = end == len(choice.tokens)
            delta = _chat_delta(script, engine, called[index], merged(script, index, start, end))
            logprobs = None
            if script.logprobs:
                logprobs = {"content": [_chat_logprob(engine.logprob(script, index, at)) for at in range(start, end)]}
            if not delta and script.parsed and not ends and not script.logprobs and not script.token_ids:
                continue
            if not delta and not script.parsed:
                delta = {"content": ""}
            document: dict[str, Any] = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}
            if ends:
                document["finish_reason"] = "tool_calls" if called[index] else choice.finish
                document["stop_reason"] = choice.stop_reason
            document["token_ids"] = [t.id for t in choice.tokens[start:end]] if script.token_ids else None
            chunk = {**head, "choices": [document]}
            if ends and script.usage != "end":
                chunk["system_fingerprint"] = engine.fingerprint
            if script.usage == "continuous":
                chunk["usage"] = usage(script.prompt_tokens, made[index])
            wire.send(chunk, choice=index)
    if script.usage:
        last = {**head, "choices": [], "usage": usage(script.prompt_tokens, sum(made))}
        wire.send({**last, "system_fingerprint": engine.fingerprint})
    wire.done()
    return wire.chunks


def _chat_starts(wire: Wire, script: Script, head: dict[str, Any]) -> None:
    for index in range(len(script.choices)):
        document = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None}
        chunk = {**head, "choices": [{**document, "finish_reason": None}]}
        if script.token_ids:
            chunk["prompt_token_ids"] = list(range(script.prompt_tokens))
        wire.send(chunk, choice=index, bare=not wire.joined or bool(script.echo))
    for index in range(len(script.choices) if script.echo else 0):
        document = {"index": index, "delta": {"content": script.echo}, "logprobs": None, "finish_reason": None}
        wire.send({**head, "choices": [document]}, choice=index, bare=True)


def _chat_delta(
    script: Script, engine: Engine, called: dict[str | int, str], texts: list[tuple[str | int, str]]
) -> dict[str, Any]:
    delta: dict[str, Any] = {}
    for channel, text in texts:
        if isinstance(channel, str):
            if text or not script.parsed:
                delta[channel] = text
            continue
        call: dict[str, Any] = {"index": channel, "function": {"arguments": text}}
        if channel not in called:
            called[channel] = engine.own_id("chatcmpl-tool-")
            call = {"id": called[channel], "type": "function", **call}
            call["function"] = {"name": script.tools[channel], "arguments": text}
        delta.setdefault("tool_calls", []).append(call)
    return delta


def _chat_logprob(entry: dict[str, Any]) -> dict[str, Any]:
    raw = list(entry["token"].encode("utf-8", "replace"))
    return {**entry, "bytes": raw, "top_logprobs": [{**entry, "bytes": raw}]}


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
    }


def completion(script: Script, engine: Engine) -> list[bytes]:
    """The chunks of a completion stream; all that is said is content."""
    wire = Wire(engine, len(script.choices))
    head = {
        "id": engine.own_id("cmpl-"),
        "object": "text_completion",
        "created": engine.rng.randrange(10**9),
        "model": "m",
    }
    made = [0] * len(script.choices)
    offsets = [0] * len(script.choices)
    for step in engine.outputs(script):
        for index, start, end in step:
            wire.note(index, [token.id for token in script.choices[index].tokens[start:end]])
        for index, start, end in step:
            first = made[index] == 0
            made[index] += end - start
            choice = script.choices[index]
            ends = end == len(choice.tokens)
            logprobs = None
            if script.logprobs:
                entries = [engine.logprob(script, index, at) for at in range(start, end)]
                if first and script.echo:
                    entries = [{"token": script.echo, "logprob": -9.0}, *entries]
                logprobs, offsets[index] = _completion_logprobs(entries, offsets[index])
            text = "".join(text for _, text in merged(script, index, start, end))
            document = {
                "index": index,
                "text": script.echo + text if first else text,
                "logprobs": logprobs,
                "finish_reason": choice.finish if ends else None,
                "stop_reason": choice.stop_reason if ends else None,
                "prompt_token_ids": [1, 2, 3] if first and script.token_ids else None,
                "token_ids": [t.id for t in choice.tokens[start:end]] if script.token_ids else None,
            }
            chunk = {**head, "choices": [document]}
            if ends and script.usage != "end":
                chunk["system_fingerprint"] = engine.fingerprint
            if script.usage == "continuous":
                chunk["usage"] = usage(script.prompt_tokens, made[index])
            wire.send(chunk, choice=index)
    if script.usage:
        last = {**head, "choices": [], "usage": usage(script.prompt_tokens, sum(made))}
        wire.send({**last, "system_fingerprint": engine.fingerprint})
    wire.done()
    return wire.chunks


def _completion_logprobs(entries: list[dict[str, Any]], offset: int) -> tuple[dict[str, Any], int]:
    offsets = []
    for entry in entries:
        offsets.append(offset)
        offset += len(entry["token"])
    made = {
        "text_offset": offsets,
        "token_logprobs": [entry["logprob"] for entry in entries],
        "tokens": [entry["token"] for entry in entries],
        "top_logprobs": [{entry["token"]: entry["logprob"]} for entry in entries],
    }
    return made, offset


def events(stream: bytes) -> Iterator[tuple[str, Any]]:
    """Names and documents of a stream, as a client reads them; comments must not be there."""
    for raw in stream.split(b"\n\n"):
        name, data = "", None
        for line in raw.split(b"\n") if raw else ():
            kind, _, value = line.partition(b": ")
            assert kind in (b"id", b"event", b"data"), line
            if kind == b"event":
                name = value.decode()
            elif kind == b"data":
                data = value.decode()
        if data is not None:
            yield name, data if data == "[DONE]" else json.loads(data)
