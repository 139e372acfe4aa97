"""Checks that the events of an engine are those of an answer, and whether the answer has ended."""

from __future__ import annotations

import re

import orjson

from longboat.gateway.api.prompt_size import TOO_LONG
from longboat.gateway.api.usage import AnswerKind
from longboat.gateway.resume.continuation.parts import IDS
from longboat.gateway.resume.journal import Journal

__all__ = ("EngineFaultError", "EventCheck")

_MAX_REPORTS = 2
_ENDS = {
    AnswerKind.OPENAI_EVENTS: (b"\ndata: [DONE]",),  # at the beginning of a line: a text may hold it elsewhere
    AnswerKind.ANTHROPIC_EVENTS: (b'"type":"message_stop"', b'"type": "message_stop"'),
    AnswerKind.RESPONSES_EVENTS: (b"\nevent: response.completed", b"\nevent: response.incomplete"),
}
_REPORTS = (b'data: {"error"', b"event: error\n", b"event: response.failed\n")
_REFUSES = re.compile(
    rb'"type": ?"(?:invalid_request_error|BadRequestError)"|"code": ?400\b|"message": ?"[^"]*' + TOO_LONG.encode()
)
"""Part of a report about the request itself: SGLang refuses a prompt that is too long in the stream of its answer."""


class EngineFaultError(Exception):
    """An engine's stream is well-formed HTTP, but not the answer."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason  # one word, for counting


class EventCheck:
    """The check of one answer's events, whichever engine sends them."""

    __slots__ = ("_kind", "_last", "_num_reports")

    def __init__(self, kind: AnswerKind) -> None:
        self._kind = kind
        self._last = b""  # the last events of the present engine
        self._num_reports = 0  # errors that engines reported within the answer

    def begin(self) -> None:
        """Begin the answer of another engine."""
        self._last = b""

    def take(self, events: bytes, *, last: bool, tells_ids: bool, journal: Journal) -> None:
        """Check the next events, before the journal gets them.

        last: the engine says that this was all; tells_ids: each event brings tokens
        :raises EngineFaultError: they are not of an answer, or it ends before its end
        """
        if events:
            if not tells_ids and not self._is_sound(events, journal):
                raise EngineFaultError("nonsense", "it sent something that is not an event of an answer")
            self._last = events
        if last and not self.ended:
            raise EngineFaultError("ended", "it ended its answer before the end")

    @property
    def ended(self) -> bool:
        """Whether the last events hold the answer's end, or an error in its place."""
        last = b"\n" + self._last[-65536:]
        for mark in _ENDS[self._kind]:
            if mark in last:
                return True
        return any([mark in last for mark in _REPORTS])

    def _is_sound(self, events: bytes, journal: Journal) -> bool:
        """Check events that bring no token: an engine that failed may say so in its stream."""
        for mark in _REPORTS:
            if mark in events:
                if not journal.num_tokens and _REFUSES.search(events) is not None:
                    return True  # any other engine would say the same
                self._num_reports += 1
                if self._num_reports <= _MAX_REPORTS:
                    raise EngineFaultError("report", "it reported an error within its answer")
                return True
        for event in events.split(b"\n\n"):
            if event.startswith(IDS):
                continue
            for line in event.split(b"\n"):
                if line.startswith(b"data:") and not line.endswith(b"[DONE]") and not _is_json(line[5:]):
                    return False
        return True


def _is_json(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True
