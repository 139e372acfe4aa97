"""What one streamed answer needs so that another engine can continue it: its seed, its journal, its faults so far."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

import orjson

from longboat.core.states import ResumeLevel
from longboat.gateway.api.body_fields import BodyKind, Facts
from longboat.gateway.api.prompt_size import TOO_LONG
from longboat.gateway.api.usage import AnswerKind
from longboat.gateway.resume.continuation.parts import IDS
from longboat.gateway.resume.event_ids import MAX_CHOICES, Point
from longboat.gateway.resume.journal import Journal
from longboat.gateway.resume.numbering import Numbering
from longboat.gateway.resume.reconnect import (
    ClientRemainder,
    CrossedError,
    Identity,
    ItemIds,
    ResumeToken,
    identity_of,
)
from longboat.gateway.resume.remainder import Continuation, ContinuationError

if TYPE_CHECKING:
    from longboat.gateway.http.response_head import ResponseHead
    from longboat.gateway.upstreams.upstream import Upstream

__all__ = ("EngineFaultError", "ResumeState", "resume_state_of")

_MAX_VAIN_FAULTS = 16
_MAX_REPORTS = 2
_MAX_DIFFERING = 3
_MAX_CROSSED = 12  # busy engines tell tokens together, now these and now those
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

_KINDS = (BodyKind.CHAT, BodyKind.COMPLETIONS, BodyKind.MESSAGES, BodyKind.RESPONSES)
_JOURNAL_LINE = b"x-longboat-journal: 1\r\n"
_MAX_SEED = 2**31 - 1


class EngineFaultError(Exception):
    """An engine's stream is well-formed HTTP, but not the answer."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason  # one word, for counting


def resume_state_of(
    facts: object, kind: AnswerKind, comes_back: tuple[ResumeToken, Point] | None, *, seeds: bool
) -> ResumeState | None:
    """Return the state of a streamed answer that another engine may continue; None for any other answer.

    facts: of the body; comes_back: what its client has of the answer
    """
    if type(facts) is not Facts or not facts.stream or facts.kind not in _KINDS or facts.n > MAX_CHOICES:
        return None
    if comes_back is not None:
        token, _ = comes_back
        resume_state = ResumeState(kind, facts.n, token.seed if token.seed >= 0 else None)
        resume_state.revision = token.revision
        resume_state.comes_back = comes_back
        return resume_state
    seed = None
    if seeds and facts.document.get("seed") is None:
        seed = int(random.random() * _MAX_SEED)
    return ResumeState(kind, facts.n, seed)


class ResumeState:  # size: one answer's way through engines; most fields are needed by every token
    """One answer's way through one engine or several."""

    __slots__ = (
        "_carried",
        "_items",
        "_kind",
        "_last_events",
        "_num_choices",
        "_num_crossed",
        "_num_differing",
        "_num_reports",
        "_numbering",
        "_rest",
        "_tokens_before",
        "_vain",
        "asked",
        "comes_back",
        "continuation",
        "detection_s",
        "fault_s",
        "journal",
        "level",
        "model",
        "reason",
        "resumed_s",
        "revision",
        "seed",
    )

    def __init__(self, kind: AnswerKind, num_choices: int, seed: int | None) -> None:
        self._kind = kind
        self._num_choices = num_choices
        self.seed = seed  # for requests that name none; None where they do
        self.journal: Journal | None = None  # made when an engine says that it keeps one
        self.continuation: Continuation | None = None  # from the second engine on
        self.model = ""  # the name that the present engine is asked for: the model's, or an adapter's
        self.asked = ""  # the revision that it was asked for: an adapter may change before the engine answers
        self.revision = ""  # of the engine that began the answer; only its like may continue it
        self.level = ResumeLevel.CARRIED
        self.reason = ""  # why the last engine was left
        self.fault_s = 0.0  # when it was left (monotonic); 0.0 while an engine answers
        self.resumed_s = 0.0  # when the last continuation brought something new (monotonic); 0.0: none did
        self.detection_s = 0.0  # how long it was silent before
        self._carried: list[list[int]] = []  # token ids that the next engine is given, per choice
        self._last_events = b""
        self._num_differing = self._num_reports = self._num_crossed = 0
        self._numbering = self._new_numbering()
        self._items: ItemIds | None = None  # of a Responses stream
        self._rest: ClientRemainder | None = None  # what a client that came back lacks
        self.comes_back: tuple[ResumeToken, Point] | None = None  # the client has a beginning from another gateway
        self._tokens_before = -1  # tokens at the fault before
        self._vain = 0  # faults one after another without a token between them

    # what an engine is sent

    def lines(self, upstream: Upstream) -> bytes:
        """Return the header lines for an engine that keeps journals."""
        if upstream.resume is ResumeLevel.NONE:
            return b""
        return _JOURNAL_LINE if self.seed is None else b"%bx-longboat-seed: %d\r\n" % (_JOURNAL_LINE, self.seed)

    def carry(self, upstream: Upstream, body: bytes) -> tuple[bytes, bytes]:
        """Return the header lines and the body for an engine that begins the answer, or continues it."""
        lines = self.lines(upstream)
        if not self._carries:
            return lines, body
        mode = "replay" if ResumeLevel.REPLAY in (self.level, upstream.resume) else "carried"
        prefix = orjson.dumps({"mode": mode, "prior": self._carried})
        return b"%bx-longboat-carry: %d\r\n" % (lines, len(prefix)), prefix + body

    @property
    def _carries(self) -> bool:
        return self.level is not ResumeLevel.NONE and any(self._carried)  # not for the first of an answer

    def lower(self) -> bool:
        """Take a slower way after an engine refused a request. Return whether it was one to take tokens over."""
        if not self._carries:
            return False
        self.level = self.level.slower
        return True

    # what an engine sends

    def begins(self, head: ResponseHead, upstream: Upstream) -> None:
        """Begin the first engine's answer; keep a journal where the engine tells token ids."""
        self.revision = self.asked or upstream.revision_of(self.model)
        self.journal = self.continuation = None
        self._last_events = b""
        self._numbering = self._new_numbering()
        if self._kind is AnswerKind.RESPONSES_EVENTS:
            self._items = ItemIds(self.comes_back[0].id if self.comes_back is not None else "")
        if self.comes_back is not None:
            token, point = self.comes_back
            told = tuple(map(len, self._carried)) if head.tells_apart else ()
            self._rest = ClientRemainder(point, Identity(token.id, token.created), told)
        if head.journaled and head.events and head.status == 200:
            self.journal = Journal(self._kind, self._num_choices)

    def goes_on(self) -> None:
        """Begin a further engine's answer."""
        assert self.journal is not None
        self._last_events = b""
        self.continuation = Continuation(self._kind, self.journal)

    @property
    def lets_tokens_pass(self) -> bool:
        """Whether the journal is all that must see an event which brings a token."""
        plain = self.continuation is None and self._items is None and self._rest is None
        return plain and self.journal is not None and self._num_choices == 1

    def feed(self, events: bytes, *, last: bool) -> bytes:
        """Return what the client gets of whole events. last: the engine says that this was all.

        :raises EngineFaultError: this is not an answer, or not the one that the client has the beginning of
        """
        journal = self.journal
        assert journal is not None
        if self.continuation is None:
            if journal.log.sent_bytes:  # the connection may have passed some on by itself
                self._numbering.passed(journal.log.last())
            plain = self._numbering.plain(events) if events else None
            if plain is not None:
                return self._feed_plain(journal, events, plain, last=last)
        alone = False
        if events:
            alone = events.startswith(IDS) and events.find(b"\n\n") == len(events) - 2
            if not alone and not self._is_sound(events):
                raise EngineFaultError("nonsense", "it sent something that is not an event of an answer")
            self._last_events = events
        if last and not self._ended():
            raise EngineFaultError("ended", "it ended its answer before the end")
        if self.continuation is None:
            out = journal.feed(events)
        else:
            alone = alone and self.continuation.caught_up
            try:
                out = self.continuation.feed(events)
            except ContinuationError as error:
                raise EngineFaultError("differs", str(error)) from error
        if self._items is not None and out:
            out = self._items.feed(out)
        out = self._numbering.feed(out, grows=alone)
        return out if self._rest is None or not out else self._behind(self._rest, out)

    def _feed_plain(
        self, journal: Journal, events: bytes, plain: tuple[bytes, bytes, int, bool], *, last: bool
    ) -> bytes:
        """Feed events of one choice, as nearly all are; see ``feed``."""
        out, last_id, count, told = plain
        if not told and not self._is_sound(events):
            raise EngineFaultError("nonsense", "it sent something that is not an event of an answer")
        self._last_events = events
        if last and not self._ended():
            raise EngineFaultError("ended", "it ended its answer before the end")
        journal.keep(events)
        self._numbering.went(last_id, count)
        return out if self._rest is None else self._behind(self._rest, out)

    def _behind(self, rest: ClientRemainder, events: bytes) -> bytes:
        """Return what a client that came back lacks of these events."""
        try:
            return rest.feed(events)
        except CrossedError as error:
            assert self.journal is not None
            more = self._num_crossed % 2  # an engine may tell what is carried by itself, or with what follows
            priors = zip(self.journal.ids, error.priors, strict=False)
            self._carried = [ids[: count + more * (len(ids) > count + 1)].tolist() for ids, count in priors]
            self._num_crossed += 1
            reason = "crossed" if self._num_crossed <= _MAX_CROSSED else "gone"
            raise EngineFaultError(reason, str(error)) from error

    def _new_numbering(self) -> Numbering:
        return Numbering(self._num_choices, sequenced=self._kind is AnswerKind.RESPONSES_EVENTS)

    def token_line(self, events: bytes, secret: str, *, pool: str, request: str, now_s: float) -> bytes:
        """Return the header line with which the client may come back. events: its first; request: its digest"""
        if self.comes_back is not None:
            token = self.comes_back[0]
        else:
            identity = identity_of(events)
            seed = -1 if self.seed is None else self.seed
            token = ResumeToken(pool, self.revision, seed, request, identity.id, identity.created, int(now_s))
        return b"x-longboat-resume: %b\r\n" % token.encode(secret)

    @property
    def num_withheld(self) -> int:
        """Tokens that were made again for a client that said it has them. It may say more than were ever made."""
        if self.comes_back is None or self.journal is None:
            return 0
        places = zip(self.comes_back[1].places, self.journal.ids, strict=False)
        return sum(min(tokens, len(ids)) for (tokens, _), ids in places)

    @property
    def can_go_on(self) -> bool:
        """Whether another engine could continue what the client has."""
        return self.journal is not None and _is_complete_so_far(self.journal)

    @property
    def is_known_so_far(self) -> bool:
        """Whether the engine told tokens, and no engine's answer differed. Costs less than ``can_go_on``."""
        return self.journal is not None and self.journal.num_tokens > 0 and not self._num_differing

    @property
    def caught_up(self) -> bool:
        """Whether the client gets news again."""
        return self.continuation is None or self.continuation.caught_up

    @property
    def num_tokens(self) -> int:
        return self.journal.num_tokens if self.journal is not None else 0

    # faults

    @property
    def is_over(self) -> bool:
        """Whether the client has the end of the answer."""
        return self.journal is not None and self._ended() and self.journal.delivered().ended

    def fails(self, reason: str, now_s: float, *, silent_s: float) -> bool:
        """Note that the engine is lost in the middle of the answer. Return whether another can continue it."""
        if not self.fault_s:
            self.fault_s, self.detection_s, self.reason = now_s, silent_s, reason
        journal = self.journal
        if journal is None or not self.can_go_on:
            return False
        self._num_differing += reason == "differs"
        tokens = journal.num_tokens
        self._vain = 0 if tokens > self._tokens_before else self._vain + 1
        self._tokens_before = tokens
        self._carried = journal.priors()
        return self._vain < _MAX_VAIN_FAULTS and self._num_differing < _MAX_DIFFERING

    def _is_sound(self, events: bytes) -> bool:
        """Check events that bring no token: an engine that failed may say so in its stream."""
        for mark in _REPORTS:
            if mark in events:
                if not self.num_tokens and _REFUSES.search(events) is not None:
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

    def _ended(self) -> bool:
        last = b"\n" + self._last_events[-65536:]
        for mark in _ENDS[self._kind]:
            if mark in last:
                return True
        return any([mark in last for mark in _REPORTS])


def _is_complete_so_far(journal: Journal) -> bool:
    """Return whether the journal knows all that the client has, and the client lacks something."""
    return journal.is_resumable or (not journal.num_tokens and not journal.delivered().ended)


def _is_json(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True
