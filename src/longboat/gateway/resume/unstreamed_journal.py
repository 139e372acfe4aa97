"""What is kept of a long answer that is no stream, so that another engine can go on with it. Pure.

The client has nothing of it before its end, so whatever is not known here costs time, and nothing else.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import orjson

from longboat.core.states import ResumeLevel
from longboat.gateway.api.body_fields import BodyKind, Facts
from longboat.gateway.resume.continuation.parts import STEPS, ContinuationError, event_of

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
    """Return one for a request whose answer may be long and is no stream; None for any other. facts: of the body"""
    if type(facts) is not Facts or facts.stream or facts.kind not in _KINDS:
        return None
    is_short = facts.max_tokens is not None and facts.max_tokens < MIN_TOKENS
    return None if is_short else WholeJournal(facts.n)


class WholeJournal:
    """The tokens of one answer as engines tell them while they make it, and at last the answer itself.

    told: an engine began to tell tokens; carries: it was asked to go on with those of another
    engine_steps: what the engine last told of its own; -1 is nothing yet
    status, answer: what the client gets; None while it is not there
    """

    __slots__ = ("_ids", "_level", "_new", "_revision", "_tail", "answer", "carries", "engine_steps", "status", "told")

    def __init__(self, num_choices: int) -> None:
        self._ids = [array("I") for _ in range(num_choices)]
        self._new: list[array[int]] = []
        self._revision = ""
        self._level = ResumeLevel.CARRIED
        self._tail = b""
        self.told = self.carries = False
        self.engine_steps = -1
        self.status = 0
        self.answer: bytes | None = None

    def carry(self, upstream: Upstream, body: bytes) -> tuple[bytes, bytes]:
        """Header lines and body for an engine that is asked for the answer, with the tokens that are known so far."""
        self.told = self.carries = False
        self._tail, self.answer = b"", None
        self._keep_longer()
        if upstream.resume is ResumeLevel.NONE:
            return b"", body
        if upstream.revision != self._revision:
            self._revision, self._ids = upstream.revision, [array("I") for _ in self._ids]
        prior = [ids[:-1].tolist() for ids in self._ids]  # the last one may have ended its choice: it does so again
        if self._level is ResumeLevel.NONE or not any(prior):
            return _LINE, body
        self.carries = True
        level = ResumeLevel.REPLAY if ResumeLevel.REPLAY in (self._level, upstream.resume) else self._level
        prefix = orjson.dumps({"mode": _MODES[level], "prior": prior})
        return b"%bx-longboat-carry: %d\r\n" % (_LINE, len(prefix)), prefix + body

    def lower(self) -> None:
        """An engine refused to go on with these tokens in this way."""
        self._level = ResumeLevel.REPLAY if self._level is ResumeLevel.CARRIED else ResumeLevel.NONE

    def begins(self) -> None:
        """An engine tells tokens, from the answer's first one on."""
        self.told = True
        self.engine_steps = -1
        self._new = [array("I") for _ in self._ids]

    def feed(self, data: bytes) -> None:
        """Any bytes of what it tells. :raises ContinuationError: they make no sense"""
        *events, self._tail = (self._tail + data).split(b"\n\n")
        if len(self._tail) > _MAX_EVENT_BYTES:
            raise ContinuationError("an engine's answer does not end")
        for raw in events:
            if raw.startswith(STEPS) and raw[len(STEPS) :].isdigit():
                self.engine_steps = int(raw[len(STEPS) :])
                continue
            event = event_of(raw)
            try:
                for choice, ids in event.ids:
                    self._new[choice].extend(ids)
            except (IndexError, OverflowError) as error:
                raise ContinuationError("an engine's journal line is torn") from error
            if event.name:
                if not event.name.isdigit():
                    raise ContinuationError("an engine's answer has no status")
                self.status, self.answer = int(event.name), event.data

    @property
    def num_tokens(self) -> int:
        """Of what the present engine told."""
        return sum(map(len, self._new))

    def _keep_longer(self) -> None:
        if sum(map(len, self._new)) > sum(map(len, self._ids)):
            self._ids = self._new
        self._new = []
