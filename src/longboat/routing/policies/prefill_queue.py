"""One replica's prefills that have no first token yet, as a clock: when will the replica have computed them."""

from __future__ import annotations

from typing import Final

from longboat.compiled import mypyc_attr
from longboat.routing.policies.contract import EngineReport
from longboat.routing.policies.places import Places
from longboat.routing.policies.prefill_time import CHUNK_TOKENS, Work

__all__ = ("PrefillQueue", "Sample")

_SAMPLE_TOKENS: Final = 4096.0  # prefills share steps of the engine: times are taken over at least this many tokens
_PACE_MEMORY: Final = 0.97  # weight that a sample of the pace keeps with each new one: about 33 count
_PACE_PRIOR: Final = 4.0  # samples that the mean replica's pace counts as
_FORGET_S: Final = 60.0  # time without a sample after which those there were count half
_FORGOTTEN: Final = 1e-3  # fewer samples than this are none
_OWN_AT_MOST: Final = 1.1  # reported tokens are other gateways' above this multiple of our own,
_OWN_MARGIN: Final = 512.0  # and this many more
_SAME_STEP_S: Final = 0.002  # first tokens that come within it are of one step
_OVERDUE: Final = 0.5  # part of its delay that an overdue prefill is expected to take still


@mypyc_attr(acyclic=True)
class _Prefill:
    """One prefill under way."""

    __slots__ = ("prompt_tokens", "seconds", "sent_s", "work")

    def __init__(self, work: Work, prompt_tokens: int, seconds: float, sent_s: float) -> None:
        self.work = work
        self.prompt_tokens = prompt_tokens  # cached ones too: engines count them as queued until they begin
        self.seconds = seconds  # predicted
        self.sent_s = sent_s


class Sample:
    """A measured time: what was computed, and in how many seconds."""

    __slots__ = ("seconds", "work")

    def __init__(self, work: Work, seconds: float) -> None:
        self.work = work
        self.seconds = seconds


class PrefillQueue:  # size: the state of one replica, read by every decision
    """One replica's prefills under way, in the order in which engines compute them: first come, first served."""

    def __init__(self) -> None:
        self.pace = 1.0  # its seconds, in seconds of the mean replica
        self.stored = 0.0  # uncached tokens that it had to store, in units of the policy
        self.places = Places()
        self.queued_s = 0.0  # predicted seconds of all its prefills under way
        self.seen_wait_s = self.seen_prefill_s = self.seen_cost_s = 0.0  # terms of the last decision that weighed it
        self._prefills: dict[str, _Prefill] = {}  # by request; the first is being computed
        self._head_s = 0.0  # predicted seconds of those that the step under way computes
        self._head_tokens = 0.0  # their tokens to compute
        self._step_s = 0.0  # predicted seconds of a step beside what it computes of prompts
        self._tokens = 0.0  # of all prefills, to compute
        self.last_requests = 0  # prefills that end with the last step, where it has not begun: more tokens delay them
        self.last_room = CHUNK_TOKENS  # prompt tokens that this step can compute beside theirs
        self._since_s = 0.0  # when the computation of the first began
        self._shared = False  # whether other gateways have prefills there, by the last report
        self._reported_s = 0.0  # all gateways' prefills by the last report, and those that we sent since
        self._reported_at_s = 0.0  # when the report was true
        self.report: EngineReport | None = None  # the last one that was taken
        self._measured: Work | None = None  # finished prefills whose time is not a sample yet
        self._measured_s = 0.0
        self._measured_sum_s = 0.0  # measured seconds of samples, with forgetting
        self._predicted_sum_s = 0.0  # predicted seconds of the same samples
        self._samples = 0.0  # number of those samples
        self._learned_s = 0.0  # when the pace was last corrected
        self._is_warm = False  # whether a sample was seen: the first also holds what an engine does only once

    def wait_s(self, now_s: float) -> float:
        """Return how long until a prefill that is sent now begins."""
        own = self._own_wait_s(now_s)
        if self._shared:
            everything = self._reported_s - (now_s - self._reported_at_s)
            if everything > own:
                return everything
        return own

    def _own_wait_s(self, now_s: float) -> float:
        if not self._prefills:
            return 0.0
        own = self.queued_s + self._step_s
        rest = self._tokens - self._head_tokens
        if rest > CHUNK_TOKENS:
            own += self._step_s * (rest // CHUNK_TOKENS)
        done = now_s - self._since_s
        head = self._head_s + self._step_s
        return own + (-done if done < head else _OVERDUE * (done - head) - head)

    def add(self, key: str, work: Work, prompt_tokens: int, seconds: float, step_s: float, now_s: float) -> None:
        """Count a prefill that was sent.

        seconds: beside ``step_s``, which all prefills of a step share
        """
        if not self._prefills:
            self._since_s = now_s
            self._head_s = seconds
            self._head_tokens = work.tokens
            self._begin_last(work.tokens)
        else:
            self._join_last(work.tokens)
        self._prefills[key] = _Prefill(work, prompt_tokens, seconds, now_s)
        self._step_s = step_s
        self._tokens += work.tokens
        self.queued_s += seconds
        self._reported_s += seconds

    def take(self, key: str, now_s: float) -> Work | None:
        """Take a prefill off, because its first token came or because it was given up; None: it was not there."""
        prefill = self._prefills.get(key)
        if prefill is None:
            return None
        if self._head_tokens <= prefill.work.tokens and next(iter(self._prefills)) == key:
            self._since_s = now_s  # it had its step for itself, so that the next one begins with its own
        del self._prefills[key]
        self.queued_s -= prefill.seconds
        self._tokens -= prefill.work.tokens
        self._begin_step()
        return prefill.work

    def _begin_step(self) -> None:
        """Find the prefills that the step under way computes: those that were there when it began."""
        self._head_s = self._head_tokens = 0.0
        if not self._prefills:
            self.queued_s = self._tokens = 0.0
        if self._tokens <= CHUNK_TOKENS:  # all of them
            self._head_s, self._head_tokens = self.queued_s, self._tokens
            self._begin_last(self._tokens)
            return
        later = len(self._prefills)
        for prefill in self._prefills.values():
            if self._head_tokens > 0.0 and self._head_tokens + prefill.work.tokens > CHUNK_TOKENS:
                self.last_requests = min(self.last_requests, later)
                return
            self._head_s += prefill.seconds
            self._head_tokens += prefill.work.tokens
            later -= 1
        self._begin_last(self._head_tokens)

    def _begin_last(self, tokens: float) -> None:
        """Note that the step under way is the last one needed, unless its prefill is longer than a step."""
        self.last_requests = 1 if tokens > CHUNK_TOKENS else 0
        self.last_room = -tokens % CHUNK_TOKENS if tokens > CHUNK_TOKENS else CHUNK_TOKENS

    def _join_last(self, tokens: float) -> None:
        """Add a prefill to the last step needed, or to a further one where that has no room for it."""
        self.last_requests += 1
        self.last_room -= tokens
        if self.last_room < 0.0:
            self.last_requests = 1
            self.last_room %= CHUNK_TOKENS

    def done(self, key: str, computed: Work | None, now_s: float, *, waited: bool = False) -> Sample | None:
        """Take a prefill off whose first token came, and return a measured time where that makes one.

        computed: what was computed by the engine's count, where it says; None: as predicted
        waited: for a place, which says nothing of prefills
        """
        started = self._since_s
        work = self.take(key, now_s)
        if work is None:
            return None
        self._since_s = now_s
        if waited:
            self._measured = None
            return None
        work = computed or work
        if self._measured is None:
            self._measured = work
            self._measured_s = now_s - started
        else:
            self._measured.add(work, same_step=now_s - started < _SAME_STEP_S)
            self._measured_s += now_s - started
        if self._prefills and self._measured.tokens < _SAMPLE_TOKENS:
            return None
        sample = Sample(self._measured, self._measured_s)
        self._measured = None
        return None if self._shared else sample

    def pace_at(self, now_s: float) -> float:
        """Return the pace. Without samples it goes back to the mean's: a replica that seemed slow is tried again."""
        if now_s - self._learned_s > _FORGET_S and self._samples > 0.0:
            self._learned_s = now_s
            self._measured_sum_s *= 0.5
            self._predicted_sum_s *= 0.5
            self._samples *= 0.5
            if self._samples < _FORGOTTEN:  # before the sums, which fall with it, come to zero
                self._measured_sum_s = self._predicted_sum_s = self._samples = 0.0
                self.pace = 1.0
            else:
                self._set_pace()
        return self.pace

    def learn(self, measured_s: float, predicted_s: float, now_s: float) -> None:
        """Correct the pace: long prefills say more of it than short ones. predicted_s: of the mean replica"""
        self._learned_s = now_s
        if not self._is_warm:
            self._is_warm = True
            return
        measured_s = min(8.0 * predicted_s, max(0.125 * predicted_s, measured_s))
        self._measured_sum_s = self._measured_sum_s * _PACE_MEMORY + measured_s
        self._predicted_sum_s = self._predicted_sum_s * _PACE_MEMORY + predicted_s
        self._samples = self._samples * _PACE_MEMORY + 1.0
        self._set_pace()

    def _set_pace(self) -> None:
        prior_s = _PACE_PRIOR * self._predicted_sum_s / self._samples
        self.pace = (self._measured_sum_s + prior_s) / (self._predicted_sum_s + prior_s)

    def correct(self, report: EngineReport, token_s: float, now_s: float) -> None:
        """Take what the engine says is queued: what is more than our own are other gateways' prefills.

        token_s: seconds of one of their prompt tokens, cached or not, at the mean replica
        """
        self.report = report
        tokens = report.queued_tokens
        if tokens is None:
            return
        own = since_s = 0.0
        for prefill in self._prefills.values():
            if prefill.sent_s <= report.taken_s:
                own += prefill.prompt_tokens
            else:
                since_s += prefill.seconds
        self._shared = tokens > own * _OWN_AT_MOST + _OWN_MARGIN
        if self._shared:
            own_s = max(0.0, self._own_wait_s(now_s) - since_s)
            self._reported_s = own_s + (tokens - own) * token_s * self.pace + since_s
            self._reported_at_s = now_s
