"""Builds Anthropic Messages streams of an engine that keeps a journal, as vLLM 0.32 makes them of a chat's."""

from __future__ import annotations

from typing import Any

from engine_streams import Engine, Script, Wire, events, merged


def message(script: Script, engine: Engine) -> list[bytes]:
    """The chunks of a stream for the script's first choice."""
    wire = Wire(engine, 1)
    blocks = _Blocks(wire, engine)
    tokens = script.choices[0].tokens
    for number, step in enumerate(engine.outputs(script)):
        ((_, start, end),) = step
        wire.note(0, [token.id for token in tokens[start:end]])
        if number == 0:
            _start(wire, script, engine)
        for channel, text in sorted(merged(script, 0, start, end), key=_order):
            blocks.say(channel, text, script)
    blocks.stop()
    ending = {"stop_reason": "end_turn", "stop_sequence": script.choices[0].stop_reason}
    used = {"input_tokens": script.prompt_tokens, "output_tokens": len(tokens)}
    wire.send({"type": "message_delta", "delta": ending, "usage": used}, name="message_delta")
    wire.send({"type": "message_stop"}, name="message_stop")
    return wire.chunks


def _order(piece: tuple[str | int, str]) -> int:
    return {"reasoning": -2, "content": -1}.get(str(piece[0]), 0)


def _start(wire: Wire, script: Script, engine: Engine) -> None:
    head = {"id": engine.own_id("chatcmpl-"), "type": "message", "role": "assistant", "content": [], "model": "m"}
    used = {"input_tokens": script.prompt_tokens, "output_tokens": 0}
    started = {**head, "stop_reason": None, "stop_sequence": None, "usage": used}
    wire.send({"type": "message_start", "message": started}, name="message_start", bare=not wire.joined)


class _Blocks:
    """Opens and closes content blocks as what is said asks for it."""

    def __init__(self, wire: Wire, engine: Engine) -> None:
        self._wire = wire
        self._engine = engine
        self._open: str | int | None = None
        self._index = -1

    def say(self, channel: str | int, text: str, script: Script) -> None:
        if isinstance(channel, str) and not text:
            return
        if channel != self._open:
            self.stop()
            self._start(channel, script)
        field = {"reasoning": ("thinking_delta", "thinking"), "content": ("text_delta", "text")}
        kind, name = field.get(str(channel), ("input_json_delta", "partial_json"))
        if text:
            self._delta({"type": kind, name: text})

    def stop(self) -> None:
        if self._open is None:
            return
        if self._open == "reasoning":
            self._delta({"type": "signature_delta", "signature": self._engine.own_id("")})
        self._wire.send({"type": "content_block_stop", "index": self._index}, name="content_block_stop", choice=0)
        self._open = None

    def _start(self, channel: str | int, script: Script) -> None:
        self._open = channel
        self._index += 1
        block: dict[str, Any] = {"type": "text", "text": ""}
        if channel == "reasoning":
            block = {"type": "thinking", "thinking": ""}
        elif isinstance(channel, int):
            own_id = self._engine.own_id("chatcmpl-tool-")
            block = {"type": "tool_use", "id": own_id, "name": script.tools[channel], "input": {}}
        started = {"type": "content_block_start", "index": self._index, "content_block": block}
        self._wire.send(started, name="content_block_start", bare=not self._wire.joined)

    def _delta(self, delta: dict[str, str]) -> None:
        event = {"type": "content_block_delta", "index": self._index, "delta": delta}
        self._wire.send(event, name="content_block_delta", choice=0)


def read_message(stream: bytes) -> dict[str, Any]:
    """What a client makes of a Messages stream; what engines name as they like is checked, and left out."""
    result: dict[str, Any] = {"blocks": []}
    own_ids = set()
    for name, event in events(stream):
        kind = event["type"]
        assert kind == name
        assert "ended" not in result
        if kind == "message_start":
            assert "start" not in result
            result["start"] = event["message"]
        elif kind == "content_block_start":
            assert event["index"] == len(result["blocks"])
            block = dict(event["content_block"])
            own_ids.add(block.pop("id", None))
            result["blocks"].append({**block, "said": "", "signatures": 0, "stops": 0})
        elif kind == "content_block_delta":
            _add_delta(result["blocks"][event["index"]], event["delta"])
        elif kind == "content_block_stop":
            result["blocks"][event["index"]]["stops"] += 1
        elif kind == "message_delta":
            assert "end" not in result
            result["end"] = event
        elif kind == "message_stop":
            result["ended"] = True
    return result


def _add_delta(block: dict[str, Any], delta: dict[str, str]) -> None:
    assert not block["stops"]
    if delta["type"] == "signature_delta":
        block["signatures"] += 1
    else:
        block["said"] += delta.get("text", "") + delta.get("thinking", "") + delta.get("partial_json", "")
