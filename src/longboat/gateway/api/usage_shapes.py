"""The places where engines report the tokens of a response, as msgspec reads them.

Never compiled: msgspec reads the annotations.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = ("DOCUMENT", "EVENT", "UNREADABLE", "USAGE", "Event", "UsageShape", "seconds_of")

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]  # a broken engine's number must not break the books
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1 << 30)]


class _PromptDetails(msgspec.Struct):
    cached_tokens: _Count | None = None


class UsageShape(msgspec.Struct):
    """Every name under which counts are reported: in OpenAI's two APIs and in Anthropic's."""

    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None
    prompt_tokens_details: _PromptDetails | None = None
    input_tokens: _Count | None = None
    output_tokens: _Count | None = None
    input_tokens_details: _PromptDetails | None = None
    cache_read_input_tokens: _Count | None = None
    cache_creation_input_tokens: _Count | None = None
    seconds: _Seconds | None = None  # of audio, in place of tokens


def seconds_of(duration: float | str) -> float:
    """Return the seconds of a response's ``duration``; vLLM writes them as text. Raises msgspec.ValidationError."""
    return float(msgspec.convert(duration, _Seconds, strict=False))


class _Holder(msgspec.Struct):
    usage: UsageShape | None = None


class Event(msgspec.Struct):
    usage: UsageShape | None = None
    choices: list[msgspec.Raw] | None = None
    response: _Holder | None = None
    message: _Holder | None = None


class _TypedHolder(msgspec.Struct):
    usage: UsageShape | None = None
    type: str = ""
    duration: float | str | None = None  # of audio, in responses with segments, which report no usage


EVENT = msgspec.json.Decoder(Event)
DOCUMENT = msgspec.json.Decoder(_TypedHolder)
USAGE = msgspec.json.Decoder(UsageShape)
