"""Parses tool calls with SGLang's parsers, in an SGLang environment: prints what each point of a text brings, as JSON.

usage: tool_calls_probe.py NUMBER_OF_DIVISIONS
Each text is divided at random among tokens; the same text up to a point must bring the same words.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
from typing import Any

from longboat_sglang import tool_blocks, without_cuda

ARGUMENTS = {"name": "a b  c < d [x] </p>", "n": 12, "crew": ["x", "y z"], "o": {"k": True, "m": None}}
LONG = {"text": "down the river [x] " * 160, **ARGUMENTS}
"""Arguments with which blocks grow."""
FORMATS = ("deepseekv3", "hermes", "interns1", "kimi_k2", "llama3", "mistral", "qwen25")
TOKEN = re.compile(r"<[^\s<>]+>|\[TOOL_CALLS\]|```json|```|[A-Za-z]+| ?[^A-Za-z]")


def main() -> None:
    """Parse the texts and print the findings."""
    without_cuda.prepare()
    from sglang.srt.entrypoints.openai.protocol import Function, Tool
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.function_call.json_array_parser import JsonArrayParser

    tool_blocks.install()
    tools = [Tool(type="function", function=Function(name=name, parameters={})) for name in ("row", "steer")]
    found: dict[str, Any] = {}
    num_divisions = int(sys.argv[1])
    for name, arguments in itertools.product((*FORMATS, "list"), (ARGUMENTS, LONG)):
        if name == "list":
            calls = [{"name": "row", "parameters": arguments}, {"name": "steer", "parameters": {"to": "the north"}}]
            text, make = json.dumps(calls), JsonArrayParser
        else:
            shape = FunctionCallParser(tools, name).detector.structure_info()("row")
            text = f"Well: {shape.begin}{json.dumps(arguments)}{shape.end}"
            make = lambda name=name: FunctionCallParser(tools, name)  # noqa: E731
        points: dict[int, set[str]] = {}
        for seed in range(num_divisions if arguments is ARGUMENTS else 3):
            for place, words in said(make(), tools, divided(text, random.Random(seed))):
                points.setdefault(place, set()).add(words)
        found[f"{name}, {len(text)} characters"] = {
            "unsteady": sum(len(words) > 1 for words in points.values()),
            "end": sorted(points[-1]),
        }
    print(json.dumps(found))


def divided(text: str, rng: random.Random) -> list[str]:
    """Divide a text as a busy engine does: several tokens at once, now and then."""
    tokens, deltas = TOKEN.findall(text), []
    while tokens:
        number = rng.choice((1, 2, 3, 4, 7))
        deltas.append("".join(tokens[:number]))
        del tokens[:number]
    return deltas


def said(parser: Any, tools: list[Any], deltas: list[str]) -> list[tuple[int, str]]:
    """Return the words that a client has after so many characters; -1: after the end."""
    words: dict[str, list[str]] = {"": ["", ""]}
    found, place = [], 0

    def note(at: int, text: str, calls: list[Any]) -> None:
        words[""][1] += text or ""
        for call in calls:
            own = words.setdefault(str(call.tool_index), ["", ""])
            own[0] += call.name or ""
            own[1] += call.parameters or ""
        found.append((at, json.dumps(words)))

    for delta in deltas:
        place += len(delta)
        if hasattr(parser, "parse_stream_chunk"):
            note(place, *parser.parse_stream_chunk(delta))
        else:
            result = parser.parse_streaming_increment(delta, tools)
            note(place, result.normal_text, result.calls)
    if hasattr(parser, "parse_stream_end"):
        note(-1, *parser.parse_stream_end())
    else:
        result = parser.finish(tools)
        note(-1, result.normal_text, result.calls)
    return found


if __name__ == "__main__":
    main()
