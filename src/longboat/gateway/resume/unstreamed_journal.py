"""Keeps the tokens of a long answer that is not streamed, so that another engine can continue it. Pure.

The client has nothing of it before its end, so tokens that are not known here cost only time.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import orjson

from longboat.core.states import ResumeLevel
from longboat.gateway.api.body_fields import BodyKind, Facts
from longboat.gateway.resume.continuation.parts import STEPS, TORN, ContinuationError, event_of
from longboat.gateway.resume.event_ids import MAX_CHOICES

if TYPE_CHECKING:
    from longboat.gateway.upstreams.upstream import Upstream

__all__ = ("MIN_TOKENS", "WholeJournal", "whole_journal_of")

MIN_TOKENS = 64
"""Answers that cannot be longer are asked for again as a whole: that takes a moment."""

_MAX_EVENT_BYTES = 64 * 1024 * 1024
_KINDS = (BodyKind.CHAT, BodyKind.COMPLETIONS, BodyKind.MESSAGES, BodyKind.RESPONSES)
_LINE = b"x-longboat-journal: whole\r\n"
_MODES = {ResumeLevel.CARRIED: "carried", ResumeLevel.REPLAY: "replay"}


def whole_journal_of(facts: object) -> WholeJournal | None:
    """Return a journal for an answer that may be long and is not streamed; None for any other. facts: of the body"""
    if type(facts) is not Facts or facts.stream or facts.kind not in _KINDS or facts.n > MAX_CHOICES:
        return None
    is_short = facts.max_tokens is not None and facts.max_tokens < MIN_TOKENS
    return None if is_short else WholeJournal(facts.n)


class WholeJournal:
    """The tokens of one answer as engines tell them while they make it, and at last the answer itself."""

    __slots__ = (
        "_ids",
        "_level",
        "_new",
        "_revision",
        "_tail",
        "_tail_bytes",
        "answer",
        "carries",
        "engine_steps",
        "model",
        "status",
        "told",
    )

    def __init__(self, num_choices: int) -> None:
        self._ids = [array("I") for _ in range(num_choices)]
        self._new: list[array[int]] = []
        self._revision = ""
        self.model = ""  # the name that the present engine is asked for: the model's, or an adapter's
        self._level = ResumeLevel.CARRIED
        self._tail: list[bytes] = []  # the beginning of an event, in pieces
        self._tail_bytes = 0
        self.told = False  # an engine began to tell tokens
        self.carries = False  # the engine was asked to continue another's tokens
        self.engine_steps = -1  # the engine's own count; -1: not known yet
        self.status = 0  # of the answer
        self.answer: bytes | None = None  # what the client gets, once it is there

    def carry(self, upstream: Upstream, body: bytes) -> tuple[bytes, bytes]:
        """Return the header lines and the body for an engine, with the tokens that are known so far."""
        self.told = self.carries = False
        self._tail, self._tail_bytes, self.answer = [], 0, None
        self._keep_longer()
        if upstream.resume is ResumeLevel.NONE:
            return b"", body
        if (revision := upstream.revision_of(self.model)) != self._revision:
            self._revision, self._ids = revision, [array("I") for _ in self._ids]
        prior = [ids[:-1].tolist() for ids in self._ids]  # the last one may have ended its choice: it does so again
        if self._level is ResumeLevel.NONE or not any(prior):
            return _LINE, body
        self.carries = True
        level = ResumeLevel.REPLAY if ResumeLevel.REPLAY in (self._level, upstream.resume) else self._level
        prefix = orjson.dumps({"mode": _MODES[level], "prior": prior})
        return b"%bx-longboat-carry: %d\r\n" % (_LINE, len(prefix)), prefix + body

    def lower(self) -> None:
        """Choose a slower way: an engine refused to continue these tokens in this one."""
        self._level = self._level.slower

    def begins(self) -> None:
        """Begin an engine's tokens, from the answer's first one on."""
        self.told = True
        self.engine_steps = -1
        self._new = [array("I") for _ in self._ids]

    def feed(self, data: bytes) -> None:
        """Read any bytes of what the engine tells. :raises ContinuationError: they make no sense"""
        for raw in self._whole_events(data):
            if raw.startswith(STEPS) and raw[len(STEPS) :].isdigit():
                self.engine_steps = int(raw[len(STEPS) :])
                continue
            event = event_of(raw)
            try:
                for choice, ids in event.ids:
                    self._new[choice].extend(ids)
            except (IndexError, OverflowError) as error:
                raise ContinuationError(TORN) from error
            if event.name:
                if not event.name.isdigit():
                    raise ContinuationError("an engine's answer has no status")
                self.status, self.answer = int(event.name), event.data

    def _whole_events(self, data: bytes) -> list[bytes]:
        """Return the events that end with these bytes. Pieces of a large one are joined once, at its end."""
        tail = self._tail
        if not data:
            return []
        ends = b"\n\n" in data or (bool(tail) and tail[-1].endswith(b"\n") and data.startswith(b"\n"))
        tail.append(data)
        self._tail_bytes += len(data)
        if self._tail_bytes > _MAX_EVENT_BYTES:
            raise ContinuationError("an engine's answer does not end")
        if not ends:
            return []
        *events, rest = b"".join(tail).split(b"\n\n")
        self._tail, self._tail_bytes = [rest] if rest else [], len(rest)
        return events

    @property
    def num_tokens(self) -> int:
        """Tokens that the present engine told."""
        return sum(map(len, self._new))

    def _keep_longer(self) -> None:
        if sum(map(len, self._new)) > sum(map(len, self._ids)):
            self._ids = self._new
        self._new = []
