"""An exchange that outlives its engines: an answer that one of them has left is taken up by another."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from longboat.gateway.api.body import BodyError, Facts
from longboat.gateway.http import error_responses
from longboat.gateway.http.response_framing import Relay
from longboat.gateway.http.response_head import AnswerHead, answer_head
from longboat.gateway.http.responses import Refusal
from longboat.gateway.requests.exchange import SWEEP_S
from longboat.gateway.requests.upstream_request import body_for
from longboat.gateway.requests.waiting import WaitingExchange
from longboat.gateway.resume.continuation.parts import StitchError
from longboat.gateway.resume.reconnect import digest_of
from longboat.gateway.resume.session import EngineFaultError, Passage, passage_of
from longboat.gateway.resume.unstreamed_journal import WholeJournal, whole_journal_of
from longboat.gateway.upstreams.crash_blame import is_dead
from longboat.gateway.upstreams.pool import Pool
from longboat.gateway.upstreams.stream_watchdog import Told, Watch
from longboat.gateway.upstreams.upstream import Upstream
from longboat.routing.decisions import Pick
from longboat.routing.health.poison import Admitted
from longboat.routing.pick import pick

__all__ = ("ResumableExchange",)

_MAX_ATTEMPTS = 64
_MAX_ERROR_ANSWERS = 3
_MAX_HELD_BYTES = 1024 * 1024
_MIN_WORK_S = 0.03  # an engine that is lost sooner was dead when it got the request
_SILENT_TOO_S = 1.0
_QUARANTINE_S = 0.3  # what was lost with it is beyond its first steps elsewhere by then, so that blame is clear
_OWN_REASONS = ("moved", "refused", "error", "differs", "crossed", "gone", "again")  # nothing bad of the engine
_SAME_AGAIN = ("crossed", "again")  # it can answer if it is asked otherwise
_JSON = [(b"content-type", b"application/json")]


_NONE: Final[frozenset[str]] = frozenset()


class ResumableExchange(WaitingExchange):
    """What an engine's end means for its answer:

    - nothing of it was sent yet: the request goes to another engine, as it came
    - it is a stream that the engine kept a journal of: another engine of the same revision goes on with it
    - else it is broken: the client is told so inside the stream, or by the connection's end
    """

    _passage: Passage | None = None  # made for the first engine that keeps a journal
    _num_error_answers = 0
    _first_tokens = 0  # when this engine began
    _heard = False  # this engine's head came
    _held: tuple[bytes, ...] = ()
    _held_bytes = 0
    _journal: WholeJournal | None = None  # of a long answer that is no stream
    _leaving: tuple[str, str] | None = None  # why this engine is being left
    _maybe_killed: frozenset[str] = _NONE  # engines that were lost in its first steps
    _accused = ""  # its digest, once it was blamed for a death
    _taking_up_in: Pool | None = None
    _watch: Watch | None = None

    # what an engine is sent

    def start(self) -> None:
        if self._call.comes_back is not None:  # who may go on with it depends on it
            self._passage = self._new_passage()
        super().start()

    def _new_passage(self) -> Passage | None:
        policy = self._policy
        return passage_of(self._call, seeds=policy.seeds) if policy.enabled else None

    def _use(self, upstream: Upstream) -> None:
        if self._state.deaths.any_blamed and not self._has_content and self._is_poison():
            self._refuse(error_responses.poison())
        else:
            super()._use(upstream)

    def _dressed(self, upstream: Upstream, body: bytes) -> tuple[bytes, bytes]:
        self._heard, self._leaving = False, None
        self._watch = None
        self._held, self._held_bytes = (), 0
        passage = self._passage
        if passage is None and upstream.resumes and not self._has_content:
            passage = self._passage = self._new_passage()
        if self._relay is not None and not self._relay.started:
            self._relay = None
        if passage is None:
            return self._dressed_whole(upstream, body)
        self._first_tokens = passage.num_tokens
        if upstream.resumes:  # who keeps a journal tells each second that it lives
            self._watch = Watch(self._sent_s, self._first_tokens)
        return passage.carry(upstream, body)

    def _dressed_whole(self, upstream: Upstream, body: bytes) -> tuple[bytes, bytes]:
        """The same for an answer that is no stream: its engine tells the tokens while it makes them."""
        if self._journal is None and upstream.resumes and self._policy.enabled:
            self._journal = whole_journal_of(self._call)
        if self._journal is None:
            return b"", body
        self._watch = Watch(self._sent_s, 0)
        return self._journal.carry(upstream, body)

    def _is_poison(self) -> bool:
        call = self._call
        if call.facts is None:
            return False
        try:
            call.sent_body = call.sent_body or body_for(call)
        except BodyError:
            return False  # refused on the way
        return self._state.deaths.is_poison(call.path, call.sent_body)

    # what an engine sends

    def on_head(self, head: AnswerHead, length: int | None = None) -> None:
        upstream = self._upstream
        assert upstream is not None
        self._heard = True
        if self._leaving is not None or (self._journal is not None and self._on_head_of_whole(head, self._journal)):
            return
        if self._has_content:
            self._on_head_again(head, upstream)
        elif (head.status >= 500 and self._asks_again()) or (self._started and not self._on_late_head(head, upstream)):
            self._leave_soon("error", f"it answered {head.status}")
        else:
            if not self._started:
                super().on_head(head, length)
            if self._passage is not None:
                self._passage.begins(head, upstream)

    def _on_head_of_whole(self, head: AnswerHead, journal: WholeJournal) -> bool:
        """Whether the answer comes behind its tokens, or is to be asked for in another way."""
        if head.status == 200 and head.journaled and head.events:
            journal.begins()
            return True
        if journal.carries and 400 <= head.status < 500:
            journal.lower()
            self._leave_soon("again", "it would not go on with another's answer")
            return True
        return False

    def _on_block_of_whole(self, journal: WholeJournal, body: bytes, *, last: bool) -> None:
        """Of an answer that comes behind its tokens."""
        try:
            journal.feed(body)
        except StitchError as error:
            self._leave("nonsense", str(error))
            return
        answer, status = journal.answer, journal.status
        if not last:
            return
        if answer is None:
            self._leave("ended", "it ended its answer before the end")
        elif status >= 500 and self._asks_again():
            self._leave("error", f"it answered {status}")
        else:
            self._journal = None
            super().on_whole(answer_head(status, _JSON), len(answer), answer)

    def _on_head_again(self, head: AnswerHead, upstream: Upstream) -> None:
        """Of an engine that is to go on with an answer."""
        passage = self._passage
        assert passage is not None
        if head.status == 200 and head.events and head.journaled:
            upstream.breaker.succeeded()
            passage.goes_on()
        elif head.status == 409 and passage.lower():
            self._leave_soon("refused", "it cannot take the answer over in this way")
        else:
            self._leave_soon("refused", f"it answered {head.status} where it should go on with an answer")

    def on_block(self, body: bytes, *, last: bool) -> None:
        passage, relay = self._passage, self._relay
        if self._leaving is not None:
            return
        if self._journal is not None and self._journal.told:
            self._on_block_of_whole(self._journal, body, last=last)
            return
        assert relay is not None
        if passage is None or passage.journal is None:
            whole = body if relay.events or relay.started else self._whole(body, last=last)
            if whole is not None:
                super().on_block(whole, last=last)
            return
        try:
            body = passage.feed(relay.whole_events(body, last=False), last=last)
            if last and relay.holds_tail:
                raise EngineFaultError("ended", "it ended its answer in the middle of an event")
        except EngineFaultError as fault:
            self._leave(fault.reason, str(fault))
            return
        if body and passage.fault_s:
            self._taken_up(passage)
        if body and not self._has_content:
            self._give_token(passage, relay, body)
        self._pass_on(relay, body, last=last)

    def _give_token(self, passage: Passage, relay: Relay, events: bytes) -> None:
        """With which the client may come back: in the head, or in a comment where that went before anybody answered."""
        line = passage.token_line(self._call, events, self._state.live.policy.salt, time.time())
        if relay.started:
            self._client.write(relay.comment(b": %b\n\n" % line.rstrip()))
        else:
            relay.add_lines(line)

    def _whole(self, body: bytes, *, last: bool) -> bytes | None:
        """An answer that is no stream is held back until it is complete, so that another engine may still give it.

        None: not yet. One that is too large for that goes on its way.
        """
        if not self._policy.enabled or self._call.facts is None:
            return body
        self._held += (body,)
        self._held_bytes += len(body)
        if not last and self._held_bytes < _MAX_HELD_BYTES:
            return None
        held, self._held = self._held, ()
        return held[0] if len(held) == 1 else b"".join(held)

    def on_whole(self, head: AnswerHead, length: int, body: bytes) -> None:
        if self._leaving is not None or self._relay is not None or self._call.first_byte_s is not None:
            self._connection = None  # it is free
            self.on_head(head, None if length < 0 else length)
            self.on_block(body, last=True)
        else:
            self._heard = True
            super().on_whole(head, length, body)

    def _let_chunks_pass(self) -> None:
        if not self._has_content:  # a head was sent early; whether there is more must be known
            return
        passage = self._passage
        if passage is None or passage.journal is None:
            super()._let_chunks_pass()
        elif passage.lets_tokens_pass and self._connection is not None:
            super()._let_chunks_pass()
            self._connection.path.journal = passage.journal.log

    def sweep(self, sweeps_allowed: float) -> None:
        upstream, connection = self._upstream, self._connection
        if upstream is not None and connection is not None and self._watch is not None:
            self._watch_engine(upstream, connection.path.quiet * SWEEP_S)
        super().sweep(sweeps_allowed)

    def _watch_engine(self, upstream: Upstream, silent_s: float) -> None:
        now_s, watch, passage, whole = time.monotonic(), self._watch, self._passage, self._journal
        assert watch is not None
        journal: Told | None = whole
        if passage is not None:
            journal = passage.journal if self._heard else None
        elif whole is None or not whole.told:  # until then nothing was promised
            return
        if self._client.write_paused:
            watch.paused(now_s)
            return
        tokens, seconds = watch.look(upstream, journal, now_s, silent_s)
        if seconds and self._pool is not None and passage is not None and not passage.fault_s:
            self._pool.outliers.observe(upstream.key, tokens=tokens, seconds=seconds, now_s=now_s)
        verdict = watch.verdict(upstream, journal, now_s)
        if not verdict:
            return
        if silent_s and all(stream.silent_s >= _SILENT_TOO_S for stream in upstream.streams):
            self._state.watch_until_found(upstream)
            upstream.mark_lost(verdict, "silent")
        else:
            self._leave("silent", verdict)

    def on_lost(self, detail: str) -> None:
        connection = self._connection
        stale = connection is not None and connection.used and not self._heard
        leaves = self._upstream is not None and self._upstream.leaving
        self._leave("moved" if leaves else "lost", detail, stale=stale)

    def replica_lost(self, detail: str, reason: str) -> None:
        upstream, passage = self._upstream, self._passage
        if upstream is None or (self._has_content and (passage is None or not passage.can_go_on)):
            return  # it may still come to its end there
        self._leave(reason, detail)

    def admitted(self, now_s: float) -> Admitted:
        passage = self._passage
        if passage is None or passage.journal is None:
            return super().admitted(now_s)
        return Admitted(self, passage.num_tokens - self._first_tokens, now_s - self._sent_s)

    # leaving an engine

    def _leave_soon(self, reason: str, detail: str) -> None:
        """From within the reading of a head: what else of the answer arrives is not looked at."""
        self._leaving = (reason, detail)
        asyncio.get_running_loop().call_soon(self._go_on, self._leave_now)

    def _leave_now(self) -> None:
        if self._leaving is not None and self._call.is_open:
            self._leave(*self._leaving)

    def _leave(self, reason: str, detail: str, *, stale: bool = False) -> None:
        """This engine does not answer, or not any further.

        stale: the connection was pooled, and may just have ended by its age: that says nothing about the engine
        """
        upstream, call = self._upstream, self._call
        if upstream is None:
            return
        now_s = time.monotonic()
        died = reason in ("lost", "beats") or (reason == "silent" and bool(upstream.lost))
        died = died and now_s - self._sent_s > _MIN_WORK_S
        suspect = self._state.deaths.suspect(upstream, now_s, sure=not stale) if died else None
        silent_s = self._connection.path.quiet * SWEEP_S if self._connection is not None else 0.0
        self._drop_connection()
        self._leaving = None
        if not stale:
            if reason not in _OWN_REASONS:
                upstream.breaker.failed(now_s)
            if reason not in _SAME_AGAIN:
                call.tried |= {upstream.key}
            call.reached = True
        if reason == "error" and self._all_were_tried():
            call.tried = frozenset()  # once more, before that error is the answer
        self._attempt_failed(detail)
        self._leave_upstream()
        if self._relay is not None and self._has_all(self._relay):
            self._pass_on(self._relay, b"", last=True)
        elif reason == "gone" and not self._has_content:
            self._refuse(error_responses.no_rest())
        elif self._has_content and not self._can_go_on(reason, now_s, silent_s):
            self._give_up(detail)
        elif suspect is self and stale:
            self._maybe_killed |= {upstream.key}  # the next connection to it will show
            self._try_elsewhere()
        elif suspect is self:
            self._ask_whether_dead(upstream)
        else:
            self._try_elsewhere()

    def _has_all(self, relay: Relay) -> bool:
        """Whether the client has the answer's last event: its engine was lost behind that."""
        passage = self._passage
        return self._has_content and passage is not None and passage.is_over and relay.forget_tail()

    def _can_go_on(self, reason: str, now_s: float, silent_s: float) -> bool:
        passage, relay = self._passage, self._relay
        if passage is None or relay is None or not relay.forget_tail():
            return False
        return passage.fails(reason, now_s, silent_s=silent_s)

    def _asks_again(self) -> bool:
        """An engine answered with a server's error: whether another, or the same again, is asked before that counts."""
        call = self._call
        self._num_error_answers += 1
        if not self._policy.enabled or call.facts is None or call.pinned:
            return False
        return self._num_error_answers < _MAX_ERROR_ANSWERS

    def _ask_whether_dead(self, upstream: Upstream) -> None:
        """It was lost in this request's first steps: before another engine gets it, see whether it killed that one."""
        task = asyncio.get_running_loop().create_task(self._judge(upstream))
        self._connect_task = task
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    async def _judge(self, upstream: Upstream) -> None:
        dead = await is_dead(upstream, self._state.limits.connect_timeout_s)
        if dead:
            self._maybe_killed |= {upstream.key}
            self._call.tried |= {upstream.key}
            await asyncio.sleep(_QUARANTINE_S)
        self._connect_task = None
        self._go_on(self._try_elsewhere)

    def _has_killed(self) -> bool:
        """Whether this request is poison, now that some of the engines that it was lost with are known to be dead."""
        killed = self._maybe_killed & self._call.tried
        self._maybe_killed -= killed
        call, deaths = self._call, self._state.deaths
        if not killed or call.sent_body is None:
            return False
        self._accused = digest_of(call.path, call.sent_body)
        return any([deaths.blame(self._accused) for _ in killed])

    def _give_up(self, detail: str) -> None:
        self._count("failed")
        self._break(error_responses.answer_lost(detail))

    # being taken up by another

    def _try_elsewhere(self) -> None:
        if len(self._call.attempts) > _MAX_ATTEMPTS:
            attempts = self._call.attempts
            self._call.attempts = attempts[: _MAX_ATTEMPTS // 2] + attempts[_MAX_ATTEMPTS // 2 + 1 :]
        if self._maybe_killed and self._has_killed():
            self._state.metrics.event("poison_request")
            self._refuse(error_responses.poison())
        elif self._has_content:
            self._take_up()
        else:
            self._try_next()

    def _all_were_tried(self) -> bool:
        return all(e.key in self._call.tried for e in self._state.table.endpoints(self._call.pool) or () if e.ready)

    def _able(self, endpoints: tuple[Upstream, ...]) -> tuple[Upstream, ...]:
        passage = self._passage
        if passage is None or passage.comes_back is None:
            return super()._able(endpoints)
        return tuple(e for e in endpoints if passage.may_use(e))

    def _out_of_pools(self, refusal: Refusal) -> None:
        endpoints = self._state.table.endpoints(self._call.pool)
        if endpoints and self._call.comes_back is not None and not self._able(endpoints):
            self._refuse(error_responses.no_rest())
        else:
            super()._out_of_pools(refusal)

    def _search(self) -> None:
        if self._has_content:
            self._take_up()
        else:
            super()._search()

    def _may_use(self, upstream: Upstream) -> bool:
        if not super()._may_use(upstream):
            return False
        bound = self._has_content or self._call.comes_back is not None
        return not bound or (self._passage is not None and self._passage.may_use(upstream))

    def may_take_up(self) -> None:
        """Its turn to be taken up by another engine."""
        if self._taking_up_in is not None and self._upstream is None and self._call.is_open:
            self._go_on(self._take_up)

    def _take_up(self) -> None:
        """Let another engine go on with the answer."""
        call, passage, state = self._call, self._passage, self._state
        assert passage is not None
        pool = state.table.pool(call.pool)
        if pool is None:
            self._give_up("its model has left the fleet")
            return
        self._taking_up_in = pool
        self._begin_to_wait()
        if not pool.take_up(self, self._policy.capacity_ratio):
            return
        able = [e for e in pool.upstreams if passage.may_use(e)]
        decision = pick(able, turn=state.next_turn(), tried=call.tried, overfull=True)
        if isinstance(decision, Pick):
            self._use(decision.endpoint)
            return
        call.tried = frozenset()
        self._make_way()
        refusal = error_responses.answer_lost(call.failure)
        if self._may_wait(pool):
            self._park(pool, refusal)
        else:
            self._give_up(call.failure)

    def _taken_up(self, passage: Passage) -> None:
        """The client gets news again."""
        self._count("resumed")
        passage.fault_s = 0.0
        self._wait_until_s = 0.0
        self._call.tried = frozenset()
        self._make_way()

    def _make_way(self) -> None:
        """For the next answer that is to be taken up."""
        pool, self._taking_up_in = self._taking_up_in, None
        if pool is not None:
            pool.taken_up(self, self._policy.capacity_ratio)

    def _waited_in_vain(self) -> None:
        if self._has_content:
            self._count("failed")
        super()._waited_in_vain()

    def _count(self, result: str) -> None:
        passage = self._passage
        if passage is None or not passage.fault_s:
            return
        gap_s = time.monotonic() - self._last_block_s
        self._state.metrics.resumed(passage.reason, result, gap_s=gap_s, detection_s=passage.detection_s)

    @property
    def _is_idle(self) -> bool:
        passage = self._passage
        return super()._is_idle or (passage is not None and passage.fault_s > 0.0)

    # the body, which another engine may need

    def _has_begun(self) -> None:
        passage = self._passage
        if passage is None or passage.journal is None:
            super()._has_begun()
            return
        self._wait_until_s = 0.0
        call = self._call
        call.body = b""
        call.request.pieces.clear()
        if type(call.facts) is Facts:
            call.facts.document = {}

    def _close(self, *, status: int, outcome: str, code: str = "") -> None:
        if self._taking_up_in is not None:
            self._make_way()
        if self._accused and outcome == "ok":
            self._state.deaths.acquit(self._accused)
        super()._close(status=status, outcome=outcome, code=code)
