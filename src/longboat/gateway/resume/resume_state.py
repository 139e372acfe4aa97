"""What one streamed answer needs so that another engine can continue it: its seed, its journal, its faults so far."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import orjson

from longboat.core.states import ResumeLevel
from longboat.gateway.api.body_fields import BodyKind, Facts
from longboat.gateway.api.usage import AnswerKind
from longboat.gateway.resume.continuation.parts import IDS
from longboat.gateway.resume.event_check import EngineFaultError, EventCheck
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
_MAX_DIFFERING = 3
_MAX_CROSSED = 12  # busy engines tell tokens together, now these and now those
_KINDS = (BodyKind.CHAT, BodyKind.COMPLETIONS, BodyKind.MESSAGES, BodyKind.RESPONSES)
_JOURNAL_LINE = b"x-longboat-journal: 1\r\n"
_MAX_SEED = 2**31 - 1


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
        "_check",
        "_items",
        "_kind",
        "_num_choices",
        "_num_crossed",
        "_num_differing",
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
        self._check = EventCheck(kind)
        self._num_differing = self._num_crossed = 0
        self._numbering = Numbering()
        self._items: ItemIds | None = None  # of a Responses stream
        self._rest: ClientRemainder | None = None  # what a client that came back lacks
        self.comes_back: tuple[ResumeToken, Point] | None = None  # the client has a beginning from another gateway
        self._tokens_before = -1  # tokens at the fault before
        self._vain = 0  # faults one after another without a token between them

    # what an engine is sent

    def carry(self, upstream: Upstream, body: bytes) -> tuple[bytes, bytes]:
        """Return the header lines and the body for an engine that begins the answer, or continues it."""
        lines = b"" if upstream.resume is ResumeLevel.NONE else _JOURNAL_LINE
        if lines and self.seed is not None:
            lines += b"x-longboat-seed: %d\r\n" % self.seed
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
        self._check.begin()
        self._numbering = Numbering(self._num_choices, sequenced=self._kind is AnswerKind.RESPONSES_EVENTS)
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
        self._check.begin()
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
        plain = None
        if self.continuation is None:
            if journal.log.sent_bytes:  # the connection may have passed some on by itself
                self._numbering.passed(journal.log.last())
            plain = self._numbering.plain(events) if events else None
        alone = events.startswith(IDS) and events.find(b"\n\n") == len(events) - 2
        tells_ids = alone if plain is None else plain[3]
        self._check.take(events, last=last, tells_ids=tells_ids, journal=journal)
        if plain is None:
            out = self._stitched(journal, events, alone)
        else:  # one choice that nothing is to be changed of, as nearly all are
            out, last_id, count, _ = plain
            journal.keep(events)
            self._numbering.went(last_id, count)
        return out if self._rest is None or not out else self._behind(self._rest, out)

    def _stitched(self, journal: Journal, events: bytes, alone: bool) -> bytes:
        """Return what the client gets, with ids of its own. alone: it is one event that brings tokens"""
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
        return self._numbering.feed(out, grows=alone)

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
    def num_tokens(self) -> int:
        return self.journal.num_tokens if self.journal is not None else 0

    # faults

    @property
    def is_over(self) -> bool:
        """Whether the client has the end of the answer."""
        return self.journal is not None and self._check.ended and self.journal.delivered().ended

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


def _is_complete_so_far(journal: Journal) -> bool:
    """Return whether the journal knows all that the client has, and the client lacks something."""
    return journal.is_resumable or (not journal.num_tokens and not journal.delivered().ended)
