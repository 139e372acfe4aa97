"""Counts an answer's tokens from what the engine says, and takes out the usage event that only the gateway asked for."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ("AnswerKind", "Usage", "UsageReader")


class AnswerKind(enum.Enum):
    """The shape of an answer, by the path and the answer's content type."""

    JSON = "json"  # any answer that is not a stream of events
    OPENAI_EVENTS = "openai"  # chat, completions, audio
    RESPONSES_EVENTS = "responses"
    ANTHROPIC_EVENTS = "anthropic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one answer; None is unknown. cached_tokens are part of prompt_tokens."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class UsageReader:
    """Reads one answer on its way. Feed it what goes to the client, in order.

    added: the gateway itself asked for the usage event, so it is taken out of the stream
    num_events: server-sent events so far, about one per token; for answers that end before their usage
    """

    __slots__ = ("_added", "_kind", "num_events")

    def __init__(self, kind: AnswerKind, *, added: bool = False) -> None:
        self._kind = kind
        self._added = added
        self.num_events = 0

    def feed(self, block: bytes, last: bool) -> bytes:
        """What the client gets of this block. Blocks of streams hold whole events. May be empty: write nothing then
        (an empty HTTP chunk would end the answer)."""
        raise NotImplementedError

    def result(self) -> Usage:
        """What is known so far; cheap to call once, at the end."""
        raise NotImplementedError
