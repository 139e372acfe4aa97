"""One request for a model: what was decided about it, and what happened to it so far."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from longboat.gateway.api.body_fields import Facts
from longboat.gateway.api.usage import AnswerKind, Usage, UsageReader, take_usage_event, usage_of_document

if TYPE_CHECKING:
    from longboat.core.policy import TenantPolicy
    from longboat.gateway.api.apis import Api
    from longboat.gateway.calls.head import HeadPlan
    from longboat.gateway.calls.lease import Lease
    from longboat.gateway.external.bill import Bill
    from longboat.gateway.external.budgets import Reserved
    from longboat.gateway.external.outside import Outside
    from longboat.gateway.http.request import Request
    from longboat.gateway.records.metrics import Series
    from longboat.gateway.records.recent import Attempt, Decision
    from longboat.gateway.records.routed import Routed
    from longboat.gateway.records.spans import Span
    from longboat.gateway.resume.event_ids import Point
    from longboat.gateway.resume.reconnect import ResumeToken
    from longboat.gateway.resume.resume_state import ResumeState
    from longboat.routing.prefixes.prompt import Prompt
    from longboat.routing.route_rules import Overflowing

__all__ = ("Call",)


_JSON: Final = AnswerKind.JSON
_monotonic_s: Final = time.monotonic


class Call:
    """A request that an engine is asked for. Admission makes it; one exchange carries it out; its account closes it.

    All times are of ``time.monotonic()``.
    """

    # What most calls never change stands here once for all of them.
    at_pool = 0  # index of the model that is being tried
    pinned = ""  # key of the only replica that can answer
    plan: HeadPlan | None = None  # what the request's head decided
    comes_back: tuple[ResumeToken, Point] | None = None  # the client has the answer up to this point
    remainder: ResumeState | None = None  # what is made again for that client
    deadline_s: float | None = None  # after it the client does not wait for the first byte
    salt: str | None = None  # ``cache_salt`` for the engine
    adds_usage = False  # the gateway, not the client, asked for the stream's usage
    body_gone = False  # no other engine can be tried any more
    reserved_unix_s = 0.0  # when its tokens were reserved
    sent_body: bytes | None = None  # as engines of the pool get it
    lease: Lease | None = None  # what it holds while its account is open
    attempts: tuple[Attempt, ...] = ()  # one for each engine that was asked
    decisions: tuple[Decision, ...] = ()  # what was done beyond the ordinary, and why
    usage: UsageReader | None = None  # reads the tokens out of the answer
    told: Usage | None = None  # by an answer that came whole, where it was read on its way to the client
    whole_answer: bytes | None = None  # a body that came at once; its usage is read later
    answer_kind: AnswerKind = _JSON  # shape of ``whole_answer``
    series: Series | None = None  # metrics of its model and tenant
    span: Span | None = None
    outside: Outside | None = None  # the external model that is being tried; None: one of the fleet
    bill: Bill | None = None  # what it may cost there
    money: Reserved | None = None  # of its tenant, held while its account is open
    prompt: Prompt | None = None  # as routing sees it; None before it was needed
    routed: Routed | None = None  # where it goes and why; None where there was nothing to choose
    overflow: Overflowing | None = None  # where it goes that waits too long
    bytes_out = 0
    queued_s: float | None = None
    granted_s: float | None = None
    first_byte_s: float | None = None

    def __init__(
        self,
        request: Request,
        api: Api,
        *,
        path: bytes,
        tenant: TenantPolicy,
        pools: tuple[str, ...],
        requested: str,
        body: bytes = b"",
        facts: Facts | None = None,
        why: str = "",
        method: str = "POST",
        cost_tokens: int = 0,
        decided_s: float = 0.0,
    ) -> None:
        self.request = request
        self.api = api
        self.path = path  # of the engine's request, with the query
        self.tenant = tenant
        self.pools = pools  # models to try: the first choice and its fallbacks
        self.requested = requested  # the name that the client wrote
        self.body = body  # as the client sent it
        self.facts = facts
        self.why = why  # the routing decision in words
        self.method = method
        self.cost_tokens = cost_tokens  # estimate of prompt and completion, reserved of the tenant's quota
        self.decided_s = decided_s or _monotonic_s()

    @property
    def is_open(self) -> bool:
        """Whether its account is open."""
        return self.lease is not None and self.lease.is_open

    @property
    def tenant_name(self) -> str:
        """The name of its tenant, which compiled code reads more quickly in the plan."""
        return self.tenant.name if self.plan is None else self.plan.tenant_name

    @property
    def pool(self) -> str:
        """The model that is being tried."""
        return self.pools[self.at_pool]

    def pin(self, *, model: str, key: str) -> None:
        """Only this replica of this model can answer."""
        self.pools, self.pinned, self.overflow = (model,), key, None
        self.requested = self.requested or model

    def release_body(self) -> int:
        """Forget the body: no other engine can be tried any more. Return the bytes that this frees."""
        if self.body_gone:
            return 0
        self.body_gone = True
        self.sent_body = None
        self.release_document()
        freed, self.request.held_bytes = self.request.held_bytes, 0
        return freed

    def release_document(self) -> None:
        """Forget the body but for the bytes that engines get."""
        self.body = b""
        if isinstance(self.facts, Facts) and self.facts.document:
            self.facts.document = {}  # it weighs more than the body
        self.request.pieces.clear()

    def measured(self) -> Usage | None:
        """Return what is known of the tokens, by its events where a stream was broken off; None: nothing is yet."""
        usage = self.told
        if usage is None and self.whole_answer is not None and self.answer_kind is _JSON:
            usage = self.told = usage_of_document(self.whole_answer)
        if usage is None:
            if self.usage is None:
                if self.whole_answer is None:
                    return None
                self.usage = UsageReader(self.answer_kind, added=self.adds_usage)
                self.usage.feed(self.whole_answer, True)
            usage = self.usage.result()
            if usage.completion_tokens is None:
                return self._broken_off(usage, self.usage.num_events)
        if self.comes_back is None or usage.completion_tokens is None:
            return usage
        had = 0 if self.remainder is None else self.remainder.num_withheld
        # another gateway counted these, and the prompt
        return Usage(prompt_tokens=0, completion_tokens=max(0, usage.completion_tokens - had), cached_tokens=0)

    def without_usage_event(self, events: bytes) -> bytes:
        """Return a whole stream without the event of usage that the gateway asked for, and note what it says."""
        taken = take_usage_event(events)
        if taken is None:
            return UsageReader(self.answer_kind, added=True).feed(events, True)
        events, self.told = taken
        return events

    def _broken_off(self, usage: Usage, num_events: int) -> Usage:
        """Estimate the tokens of a stream that ended before its engine told: about one an event."""
        if not num_events or self.facts is None:
            return usage
        prompt = self.facts.num_prompt_tokens_estimate if usage.prompt_tokens is None else usage.prompt_tokens
        return Usage(prompt, num_events, usage.cached_tokens)

    def used_tokens(self, *, failed: bool) -> int | None:
        """Prompt and completion tokens to charge; None where the estimate must stand.

        failed: no engine did any work for it
        """
        if failed:
            return 0
        usage = self.measured()
        if usage is None or self.facts is None:
            return None
        if usage.completion_tokens is None:
            return usage.prompt_tokens
        prompt = self.facts.num_prompt_tokens_estimate if usage.prompt_tokens is None else usage.prompt_tokens
        return prompt + usage.completion_tokens
