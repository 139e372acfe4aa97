"""Gives some of vLLM's parsers of tool calls one token at a time, however many an engine sends together.

A busy server, speculative decoding, and tokens that are carried from another engine bring several tokens at once.
Parsers that compare two looks at a call's arguments then say other words after the same token, and two lose words for
good. With one token at a time they say what they say on a quiet engine, so a client that comes back at a token has the
words that another engine said until then.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final

from longboat_vllm.shapes import expect_parameters

__all__ = ("MOST_TOKENS", "UNSTEADY", "install", "pieces")

UNSTEADY: Final = frozenset(
    {
        "DeepSeekV31ToolParser",
        "DeepSeekV3ToolParser",
        "FunctionGemmaToolParser",
        "Granite20bFCToolParser",
        "Internlm2ToolParser",
        "JambaToolParser",
        "Llama3JsonToolParser",
        "Llama4PythonicToolParser",
        "Olmo3PythonicToolParser",
        "PythonicToolParser",
    }
)
"""Parsers of vLLM 0.32 for which that was seen. Those by its parser engine, and Hermes', are steady."""
MOST_TOKENS: Final = 2048
"""The most of one delta: each look reads the whole call again, so more would hold the server up."""
_MARK = "_longboat_tokens"
_PART: Final = "\N{REPLACEMENT CHARACTER}"
_MOST_OF_LETTER: Final = 4  # tokens: a letter has at most as many bytes
_WANTED = ("self", "delta_text", "delta_token_ids", "request", "prompt_token_ids", "finished")


def install() -> None:
    """Wrap ``DelegatingParser.parse_delta``. Raises UnexpectedShapeError."""
    from vllm.parser.abstract_parser import DelegatingParser

    if hasattr(DelegatingParser.parse_delta, _MARK):
        return
    expect_parameters(DelegatingParser.parse_delta, _WANTED)
    DelegatingParser.parse_delta = _by_tokens(DelegatingParser.parse_delta)


def _by_tokens(parse: Any) -> Any:
    @functools.wraps(parse)
    def parse_delta(
        parser: Any,
        delta_text: str,
        delta_token_ids: list[int],
        request: Any,
        prompt_token_ids: Any = None,
        *,
        finished: bool,
    ) -> Any:
        several = 1 < len(delta_token_ids) <= MOST_TOKENS and type(parser._tool_parser).__name__ in UNSTEADY
        texts = pieces(parser.model_tokenizer, delta_token_ids, delta_text) if several and request.tools else None
        if texts is None:
            return parse(parser, delta_text, delta_token_ids, request, prompt_token_ids, finished=finished)
        messages, last = [], len(texts) - 1
        for place, (text, token) in enumerate(zip(texts, delta_token_ids, strict=True)):
            messages.append(
                parse(parser, text, [token], request, prompt_token_ids, finished=finished and place == last)
            )
        return _joined([message for message in messages if message is not None])

    setattr(parse_delta, _MARK, True)
    return parse_delta


def pieces(tokenizer: Any, ids: Sequence[int], text: str) -> list[str] | None:
    """Return the text of each token; None where tokens alone do not tell it: a stop string.

    A letter of several tokens comes with its last one, as a quiet engine sends it. The first tokens may end a letter
    that began in an earlier delta.
    """
    for num_begun in range(min(_MOST_OF_LETTER, len(ids))):
        for skip in (False, True):
            texts = _texts(tokenizer, ids[num_begun:], skip)
            words = "".join(texts)
            if not num_begun and words == text:
                return texts
            if num_begun and len(text) == len(words) + 1 and text.endswith(words) and not text[0].isascii():
                return [*[""] * (num_begun - 1), text[0], *texts]
    return None


def _texts(tokenizer: Any, ids: Sequence[int], skip: bool) -> list[str]:
    texts, start = [], 0
    for end in range(1, len(ids) + 1):
        text = tokenizer.decode(list(ids[start:end]), skip_special_tokens=skip)
        is_part = text.endswith(_PART) and end - start < _MOST_OF_LETTER
        texts.append("" if is_part else text)
        start = start if is_part else end
    return texts


def _joined(messages: list[Any]) -> Any:
    """Join deltas to one; arguments that follow each other in one call become one piece. None: there is none."""
    if not messages:
        return None
    first, calls = messages[0], list[Any]()
    for name in ("content", "reasoning"):
        said = [value for message in messages if (value := getattr(message, name)) is not None]
        setattr(first, name, "".join(said) if said else None)
    for call in [call for message in messages for call in message.tool_calls]:
        before = calls[-1].function if calls and calls[-1].index == call.index and call.id is None else None
        if before is None or call.function is None or call.function.name is not None:
            calls.append(call)
        else:
            before.arguments = (before.arguments or "") + (call.function.arguments or "")
    first.tool_calls = calls
    return first
