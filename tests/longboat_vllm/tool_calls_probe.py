"""Parses tool calls with vLLM's parsers, in a vLLM environment: prints what each number of tokens brings, as JSON.

usage: tool_calls_probe.py FOLDER_OF_A_TOKENIZER NUMBER_OF_DIVISIONS
The tokens are divided at random; the same number of them must bring the same words.
"""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import torch

_torchvision = torch.library.Library("torchvision", "DEF")  # PyPI's wheel does not fit torch's CPU build
for _name in ("nms", "qnms"):
    _torchvision.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from transformers import AutoTokenizer  # noqa: E402
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest  # noqa: E402
from vllm.parser.parser_manager import ParserManager  # noqa: E402

from longboat_vllm import tool_tokens  # noqa: E402

ARGUMENTS = json.dumps(
    {"name": "a b  c < d [x] </p>", "n": 12, "crew": ["x", "Zürich 東京 🌊"], "o": {"k": True, "m": None}},
    ensure_ascii=False,
)
DEEPSEEK = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
CALLS, CALL, SEPARATOR, CALL_END, CALLS_END = DEEPSEEK
TEXTS = {
    "hermes": f'Well: <tool_call>\n{{"name": "row", "arguments": {ARGUMENTS}}}\n</tool_call>',
    "llama3_json": f'{{"name": "row", "parameters": {ARGUMENTS}}}',
    "deepseek_v3": f"Well: {CALLS}{CALL}function{SEPARATOR}row\n```json\n{ARGUMENTS}\n```{CALL_END}{CALLS_END}",
    "deepseek_v31": f"Well: {CALLS}{CALL}row{SEPARATOR}{ARGUMENTS}{CALL_END}{CALLS_END}",
}
MARKS = ("<tool_call>", "</tool_call>", "<|python_tag|>", *DEEPSEEK)
TOOLS = [{"type": "function", "function": {"name": "row", "parameters": {"type": "object"}}}]


def main() -> None:
    """Parse the texts and print the findings."""
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    tokenizer.add_tokens([mark for mark in MARKS if mark not in tokenizer.get_vocab()])
    tool_tokens.install()
    found: dict[str, Any] = {}
    for name, text in TEXTS.items():
        parser = ParserManager.get_parser(tool_parser_name=name, enable_auto_tools=True)
        points: dict[int, set[str]] = {}
        for seed in range(int(sys.argv[2])):
            for number, words in said(parser, tokenizer, divided(tokenizer, text, random.Random(seed))):
                points.setdefault(number, set()).add(words)
        found[name] = {"unsteady": sum(len(words) > 1 for words in points.values()), "end": sorted(points[-1])}
    print(json.dumps(found))


def divided(tokenizer: Any, text: str, rng: random.Random) -> list[tuple[str, list[int]]]:
    """Divide a text as a busy engine does: several tokens at once, now and then. A letter comes with its last token."""
    ids, deltas, at, told = tokenizer.encode(text, add_special_tokens=False), [], 0, ""
    while at < len(ids):
        number = rng.choice((1, 2, 3, 4, 7))
        there = tokenizer.decode(ids[: at + number]).rstrip("\N{REPLACEMENT CHARACTER}")
        deltas.append((there.removeprefix(told), ids[at : at + number]))
        at, told = at + number, there
    return deltas


def said(make: Any, tokenizer: Any, deltas: list[tuple[str, list[int]]]) -> list[tuple[int, str]]:
    """Return the words that a client has after so many tokens; -1: after the end."""
    values = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "stream": True}
    request = ChatCompletionRequest(**values)
    parser = make(tokenizer, request.tools, chat_template_kwargs={}, model_config=None)
    words, found, number = {"": ["", ""]}, [], 0
    for place, (text, ids) in enumerate(deltas, 1):
        number = number + len(ids) if place < len(deltas) else -1
        message = parser.parse_delta(text, ids, request, prompt_token_ids=[1], finished=number < 0)
        if message is not None:
            words[""][1] += message.content or ""
            for call in message.tool_calls:
                own = words.setdefault(str(call.index), ["", ""])
                own[0] += call.function.name or ""
                own[1] += call.function.arguments or ""
        found.append((number, json.dumps(words)))
    return found


if __name__ == "__main__":
    main()
