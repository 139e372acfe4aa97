"""What one request keeps so that another engine can continue its answer, or give it from the start."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from longboat.core.states import ResumeLevel
from longboat.gateway.exchange.life import Has
from longboat.gateway.http.request import request_digest
from longboat.gateway.resume.resume_state import ResumeState, resume_state_of
from longboat.gateway.resume.unstreamed_journal import WholeJournal, whole_journal_of
from longboat.gateway.upstreams.stream_watchdog import Watch

if TYPE_CHECKING:
    from longboat.gateway.calls.model_request import Call
    from longboat.gateway.calls.state import GatewayState
    from longboat.gateway.http.response_framing import Relay
    from longboat.gateway.upstreams.upstream import Upstream

__all__ = ("ResumeSession",)

_MAX_HELD_BYTES = 1024 * 1024
_MAX_HELD_NUMBERS_BYTES = 16 * 1024 * 1024  # of answers that are numbers: a batch of embeddings has megabytes


class ResumeSession:
    """The journals of one request's answer, and the bytes that are held back of one that is not streamed."""

    __slots__ = ("_call", "_held", "_held_bytes", "_state", "first_tokens", "journal", "resume_state", "watch")

    def __init__(self, state: GatewayState, call: Call) -> None:
        self._state = state
        self._call = call
        self._held: tuple[bytes, ...] = ()
        self._held_bytes = 0
        self.resume_state: ResumeState | None = None  # of a stream; made for the first engine that keeps a journal
        self.journal: WholeJournal | None = None  # of a long answer that is not streamed
        self.watch: Watch | None = None  # of the present engine, where it tells each second that it lives
        self.first_tokens = 0  # tokens that the client had when the present engine began

    def prepare(self, upstream: Upstream, body: bytes, sent_s: float) -> tuple[bytes, bytes]:
        """Return the header lines and the body with which this engine begins or continues the answer."""
        self.watch = None
        self._held, self._held_bytes = (), 0
        call, policy = self._call, self._state.live.resume
        resumes = upstream.resumes
        resume_state = self.resume_state
        if resume_state is None and resumes and policy.enabled and not call.pinned and call.first_byte_s is None:
            resume_state = self.resume_state = resume_state_of(
                call.facts, call.api.events, call.comes_back, seeds=policy.seeds
            )
            call.remainder = resume_state if call.comes_back is not None else None
        if resume_state is None:
            return self._prepare_whole(upstream, body, sent_s)
        resume_state.model, resume_state.asked = call.pool, upstream.revision_of(call.pool)
        self.first_tokens = resume_state.num_tokens
        if resumes:
            self.watch = Watch(sent_s, self.first_tokens)
        return resume_state.carry(upstream, body)

    def _prepare_whole(self, upstream: Upstream, body: bytes, sent_s: float) -> tuple[bytes, bytes]:
        call = self._call
        if self.journal is None and upstream.resumes and self._state.live.resume.enabled and not call.pinned:
            self.journal = whole_journal_of(call.facts)
        if self.journal is None:
            return b"", body
        self.watch = Watch(sent_s, 0)
        self.journal.model = call.pool
        return self.journal.carry(upstream, body)

    @property
    def is_journaled(self) -> bool:
        """Whether the present engine tells the tokens of a stream."""
        return self.resume_state is not None and self.resume_state.journal is not None

    @property
    def is_interrupted(self) -> bool:
        """Whether the client waits for the next words of an answer that has begun."""
        return self.resume_state is not None and self.resume_state.fault_s > 0.0

    @property
    def can_go_on(self) -> bool:
        """Whether another engine could continue what the client has."""
        return self.resume_state is not None and self.resume_state.can_go_on

    @property
    def can_pause(self) -> bool:
        """Whether the client gets news of an answer that another engine would continue token for token."""
        resume_state, policy = self.resume_state, self._state.live.policy.resume
        if resume_state is None or self._call.first_byte_s is None:
            return False
        if not (policy.enabled and policy.seeds and policy.wait_s > 0):  # without a wait, its next turn could be lost
            return False
        return not resume_state.fault_s and resume_state.level is ResumeLevel.CARRIED and resume_state.is_known_so_far

    def hold(self, body: bytes, *, last: bool) -> bytes | None:
        """Hold back an answer that is not streamed until it is complete, so that another engine may still give it.

        Return None while it is incomplete; an answer that is too large to be held is passed on.
        """
        if self._call.facts is None or not self._state.live.policy.resume.enabled:
            return body
        self._held += (body,)
        self._held_bytes += len(body)
        limit = _MAX_HELD_BYTES if self._call.api.weighs_completion else _MAX_HELD_NUMBERS_BYTES
        if not last and self._held_bytes < limit:
            return None
        held, self._held = self._held, ()
        return held[0] if len(held) == 1 else b"".join(held)

    def client_token(self, resume_state: ResumeState, events: bytes) -> bytes:
        """Return the header line with which the client may come back. events: the answer's first"""
        call = self._call
        digest = request_digest(call.path, call.body)
        salt = self._state.live.policy.salt
        return resume_state.token_line(events, salt, pool=call.pool, request=digest, now_s=time.time())

    def interrupted(self, relay: Relay | None, reason: str, now_s: float, silent_s: float) -> Has:
        """Return what the client has when the engine is lost. silent_s: how long the engine had been silent"""
        resume_state = self.resume_state
        if self._call.first_byte_s is None:
            return Has.NOTHING
        if resume_state is None or relay is None or not relay.forget_tail():
            return Has.STUMP
        if resume_state.is_over:
            return Has.ALL
        return Has.BEGINNING if resume_state.fails(reason, now_s, silent_s=silent_s) else Has.STUMP

    def went_on(self, last_block_s: float) -> None:
        """Note that the client gets new words again."""
        self.count("resumed", last_block_s)
        if self.resume_state is not None:
            self.resume_state.fault_s = 0.0
            self.resume_state.resumed_s = time.monotonic()

    def count(self, result: str, last_block_s: float) -> None:
        """Count how an interruption ended. last_block_s: when the client got its last words before it"""
        resume_state = self.resume_state
        if resume_state is not None and resume_state.fault_s:
            gap_s = time.monotonic() - last_block_s
            self._state.metrics.resumed(resume_state.reason, result, gap_s=gap_s, detection_s=resume_state.detection_s)
