"""Estimates the length of a request's prompt in characters, without a tokenizer.

Four characters stand for a token wherever something else than text is counted: a token id is 4 characters, a message
16 (its place in a chat template), an image, a sound or a file 4,000.
"""

from __future__ import annotations

from typing import Any

import orjson

__all__ = (
    "TOO_LONG",
    "chat_chars",
    "completion_chars",
    "detokenize_chars",
    "generate_chars",
    "messages_chars",
    "num_prompts",
    "pooling_chars",
    "rendered_chars",
    "rerank_chars",
    "responses_chars",
    "score_chars",
    "tokenize_chars",
)

TOO_LONG = r"(?:maximum|model's|available) context (?:length|size)"
"""A pattern of what vLLM, SGLang and llama.cpp say of a prompt that is too long for the model."""

Document = dict[str, Any]

_TOKEN_CHARS = 4
_MESSAGE_CHARS = 16
_MEDIA_CHARS = 4000

_TEXT_KEYS = frozenset(
    (
        *("text", "content", "name", "reasoning", "reasoning_content", "thinking", "refusal", "summary"),
        *("tool_calls", "function", "arguments", "output"),
    )
)
_JSON_KEYS = frozenset(("input", "parameters"))
_MEDIA_KEYS = frozenset(
    (
        *("image", "image_url", "image_embeds", "audio", "audio_url", "input_audio", "video", "video_url"),
        *("file", "file_data", "file_id", "file_url", "source"),
    )
)


def chat_chars(document: Document) -> int:
    return _messages(document.get("messages")) + _as_json(document, "tools") + _as_json(document, "documents")


def completion_chars(document: Document) -> int:
    return _text(document.get("prompt")) + _text(document.get("suffix"))


def messages_chars(document: Document) -> int:
    return _messages(document.get("messages")) + _text(document.get("system")) + _as_json(document, "tools")


def responses_chars(document: Document) -> int:
    asked = document.get("input")
    chars = len(asked) if type(asked) is str else _messages(asked)
    return chars + _text(document.get("instructions")) + _as_json(document, "tools")


def pooling_chars(document: Document) -> int:
    """Count the characters of embeddings, classification and similar requests."""
    chars = _text(document.get("input")) if "input" in document else 0
    if "messages" in document:
        chars += _messages(document["messages"])
    return chars


def rerank_chars(document: Document) -> int:
    return _crossed(document.get("query"), document.get("documents"))


def score_chars(document: Document) -> int:
    first = document.get("text_1") or document.get("queries") or document.get("data_1")
    second = document.get("text_2") or document.get("documents") or document.get("items") or document.get("data_2")
    return _crossed(first, second)


def tokenize_chars(document: Document) -> int:
    return _text(document.get("prompt")) + _messages(document.get("messages")) + _as_json(document, "tools")


def detokenize_chars(document: Document) -> int:
    return _text(document.get("tokens"))


def generate_chars(document: Document) -> int:
    """Count the token ids of a prompt, and the media that come with them."""
    parts = document.get("content_parts")
    return _text(document.get("token_ids")) + (_MEDIA_CHARS * len(parts) if type(parts) is list else 0)


def rendered_chars(document: Document) -> int:
    """Count a request of any kind that an engine turns into token ids and does not run."""
    return messages_chars(document) + completion_chars(document) + _text(document.get("input"))


def inputs_chars(document: Document) -> int:
    """Count a request in TGI's own words."""
    return _text(document.get("inputs"))


def num_prompts(prompt: Any) -> int:
    """Return the number of prompts: a list is several, unless it is one of token ids."""
    return len(prompt) if type(prompt) is list and prompt and type(prompt[0]) is not int else 1


def _messages(messages: Any) -> int:
    if type(messages) is not list:
        return _text(messages)
    chars = _MESSAGE_CHARS * len(messages)
    for message in messages:
        chars += _part(message) if type(message) is dict else _text(message)
    return chars


def _text(content: Any) -> int:
    if type(content) is str:
        return len(content)
    if type(content) is dict:
        return _part(content)
    if type(content) is not list or not content:
        return 0
    if type(content[0]) is int:
        return _TOKEN_CHARS * len(content)
    return sum(map(_text, content))


def _part(part: Document) -> int:
    chars = 0
    for key, value in part.items():
        if key in _TEXT_KEYS:
            chars += len(value) if type(value) is str else _text(value)
        elif key in _MEDIA_KEYS:
            chars += _MEDIA_CHARS
        elif key in _JSON_KEYS:
            chars += len(orjson.dumps(value))
    return chars


def _as_json(document: Document, name: str) -> int:
    value = document.get(name)
    return len(orjson.dumps(value)) if value else 0


def _crossed(first: Any, second: Any) -> int:
    """Count pairs of texts: a single text is read with each of the others; lists of equal length are read in pairs."""
    chars, others = _text(first), _text(second)
    if num_prompts(first) == 1:
        chars *= num_prompts(second)
    return chars + others
