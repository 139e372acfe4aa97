"""Builds Responses streams of an engine that keeps a journal, as vLLM 0.32 makes them."""

from __future__ import annotations

from typing import Any

from engine_streams import Engine, Script, Wire, events, merged

_TYPES = {"reasoning": "response.reasoning_text", "content": "response.output_text"}
_CALL = "response.function_call_arguments"


def response(script: Script, engine: Engine) -> list[bytes]:
    """The chunks of a stream for the script's first choice.

    Log-probabilities of tokens that say nothing are only told where such a token comes out together with others.
    """
    if script.logprobs:
        engine.largest, engine.one_by_one = 1, True
    wire = Wire(engine, 1)
    items = _Items(wire, engine, script)
    tokens = script.choices[0].tokens
    head = {"id": engine.own_id("resp_"), "created_at": engine.rng.randrange(10**9), "object": "response"}
    for kind in ("response.created", "response.in_progress"):
        items.send(kind, bare=True, response={**head, "output": [], "status": "in_progress", "usage": None})
    for ((_, start, end),) in engine.outputs(script):
        wire.note(0, [token.id for token in tokens[start:end]])
        logprobs = [engine.logprob(script, 0, at) for at in range(start, end)] if script.logprobs else []
        for channel, text in sorted(merged(script, 0, start, end), key=_order):
            items.say(channel, text, logprobs)
    items.stop()
    used = {"input_tokens": script.prompt_tokens, "output_tokens": len(tokens)}
    items.send("response.completed", response={**head, "output": items.done, "status": "completed", "usage": used})
    return wire.chunks


def _order(piece: tuple[str | int, str]) -> int:
    return {"reasoning": -2, "content": -1}.get(str(piece[0]), 0)


class _Items:
    """Opens and closes output items as what is said asks for it. done: items that ended"""

    def __init__(self, wire: Wire, engine: Engine, script: Script) -> None:
        self.done: list[dict[str, Any]] = []
        self._wire = wire
        self._engine = engine
        self._script = script
        self._sequence = 0
        self._open: str | int | None = None
        self._item: dict[str, Any] = {}
        self._text = ""
        self._logprobs: list[dict[str, Any]] = []

    def send(self, kind: str, *, bare: bool = False, **fields: Any) -> None:
        event = {**fields, "sequence_number": self._sequence, "type": kind}
        self._sequence += 1
        self._wire.send(event, name=kind, choice=0, bare=bare)

    def say(self, channel: str | int, text: str, logprobs: list[dict[str, Any]]) -> None:
        if channel == "content" and not text:
            return
        if channel != self._open:
            self.stop()
            self._start(channel)
        if isinstance(channel, int):
            if text:
                self._text += text
                self.send(f"{_CALL}.delta", **self._place(), delta=text)
            return
        self._text += text
        told = {}
        if channel == "content":
            self._logprobs += logprobs
            told = {"logprobs": [{**entry, "top_logprobs": [entry]} for entry in logprobs]}
        self.send(f"{_TYPES[channel]}.delta", **self._place(), content_index=0, delta=text, **told)

    def stop(self) -> None:
        if self._open is None:
            return
        place = self._place()
        if isinstance(self._open, int):
            self.send(f"{_CALL}.done", **place, arguments=self._text)
            item = {**self._item, "arguments": self._text, "status": "completed"}
        else:
            part: dict[str, Any] = {"type": _TYPES[self._open], "text": self._text}
            if self._open == "content":
                part["logprobs"] = [_full(entry) for entry in self._logprobs] or None
            self.send(f"{_TYPES[self._open]}.done", **place, content_index=0, text=self._text)
            self.send("response.content_part.done", **place, content_index=0, part=part)
            item = {**self._item, "content": [part], "status": "completed"}
        self.send("response.output_item.done", output_index=place["output_index"], item=item)
        self.done.append(item)
        self._open, self._text, self._logprobs = None, "", []

    def _place(self) -> dict[str, Any]:
        return {"output_index": len(self.done), "item_id": self._item["id"]}

    def _start(self, channel: str | int) -> None:
        self._open = channel
        bare = not self._wire.joined
        if isinstance(channel, int):
            call_id = self._engine.own_id("call_")
            name = self._script.tools[channel]
            self._item = {"type": "function_call", "id": self._engine.own_id("fc_"), "call_id": call_id, "name": name}
            self.send("response.output_item.added", bare=bare, output_index=len(self.done), item=self._item)
            return
        self._item = {"type": "message", "id": self._engine.own_id("msg_"), "content": []}
        if channel == "reasoning":
            self._item = {"type": "reasoning", "id": self._engine.own_id("rs_"), "summary": []}
        self.send("response.output_item.added", bare=bare, output_index=len(self.done), item=self._item)
        part = {"type": "part", "text": ""}
        self.send("response.content_part.added", bare=bare, **self._place(), content_index=0, part=part)


def _full(entry: dict[str, Any]) -> dict[str, Any]:
    full = {**entry, "bytes": list(entry["token"].encode())}
    return {**full, "top_logprobs": [full]}


def read_response(stream: bytes) -> dict[str, Any]:
    """What a client makes of a Responses stream; ids are checked to be the same throughout, and left out."""
    items: list[dict[str, Any]] = []
    result: dict[str, Any] = {"items": items, "starts": []}
    heads = set()
    for number, (name, event) in enumerate(events(stream)):
        kind = event["type"]
        assert kind == name
        assert event["sequence_number"] == number
        assert "end" not in result
        if "response" in event:
            heads.add((event["response"].pop("id"), event["response"].pop("created_at")))
            if kind == "response.completed":
                result["end"] = event["response"]
                for item, last in zip(items, event["response"]["output"], strict=True):
                    _check_ids(item, last)
            else:
                result["starts"].append((kind, event["response"]))
        elif kind == "response.output_item.added":
            assert event["output_index"] == len(items)
            items.append(
                {"ids": _ids_of(event["item"]), "added": event["item"], "texts": {}, "marks": [], "logprobs": []}
            )
        else:
            _add_event(items[event["output_index"]], kind, event)
    assert len(heads) == 1
    result["head"] = heads.pop()
    for item in items:
        item.pop("ids")
        item["texts"] = {kind: text for kind, text in item["texts"].items() if text}
    return result


def _add_event(item: dict[str, Any], kind: str, event: dict[str, Any]) -> None:
    if "item_id" in event:
        assert event.pop("item_id") == item["ids"][0]
    if "item" in event:
        _check_ids(item, event["item"])
    if "delta" in event:
        item["texts"][kind] = item["texts"].get(kind, "") + event["delta"]
        item["logprobs"].extend(event.get("logprobs", ()))
    else:
        event.pop("sequence_number")
        item["marks"].append(event)


def _ids_of(item: dict[str, Any]) -> tuple[str, str | None]:
    return item.pop("id"), item.pop("call_id", None)


def _check_ids(item: dict[str, Any], last: dict[str, Any]) -> None:
    assert _ids_of(last) == item["ids"]
