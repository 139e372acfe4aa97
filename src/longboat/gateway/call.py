"""One request for a model: what was decided about it, and what happened to it so far."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from longboat.gateway.usage import Usage

if TYPE_CHECKING:
    from longboat.core.policy import TenantPolicy
    from longboat.gateway.api import Api
    from longboat.gateway.body import Facts
    from longboat.gateway.metrics import Series
    from longboat.gateway.multipart import Form
    from longboat.gateway.recent import Attempt
    from longboat.gateway.reconnect import Point, ResumeToken
    from longboat.gateway.request import Request
    from longboat.gateway.tracing import Span
    from longboat.gateway.usage import UsageReader
    from longboat.routing.fair_queue import Ticket

__all__ = ("Call",)


class Call:
    """Decided once, by ``routes``; carried by an exchange; closed once, by ``books``. Times are ``time.monotonic()``.

    path: the engine's, with the query; method: POST, or what the Responses API needs
    body: as the client sent it; let go when no other engine can be tried any more
    pools: models to try, the first choice and its fallbacks; at_pool: the one being tried
    requested: the name that the client wrote; why: the routing decision in words
    cost_tokens: estimate of prompt and completion, reserved of the tenant's quota
    deadline_s: nobody waits for the answer after it; pinned: the only replica that can answer, by its key
    comes_back: its client has the beginning of the answer, up to this point, and wants the rest
    salt: ``cache_salt`` for the engine; adds_usage: the stream's usage is asked for on our account
    is_open: its account is, see ``books``; reserved_unix_s: since when
    failure: why the last replica gave no answer; reached: one of them had taken the request
    """

    __slots__ = (
        "adds_usage",
        "api",
        "at_pool",
        "attempts",
        "body",
        "bytes_out",
        "comes_back",
        "cost_tokens",
        "deadline_s",
        "decided_s",
        "facts",
        "failure",
        "first_byte_s",
        "granted_s",
        "is_open",
        "method",
        "path",
        "pinned",
        "pools",
        "queued_s",
        "reached",
        "request",
        "requested",
        "reserved_unix_s",
        "salt",
        "sent_body",
        "series",
        "span",
        "tenant",
        "ticket",
        "tried",
        "usage",
        "why",
    )

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
        facts: Facts | Form | None = None,
        why: str = "",
        method: str = "POST",
        cost_tokens: int = 0,
    ) -> None:
        self.request = request
        self.api = api
        self.path = path
        self.tenant = tenant
        self.pools = pools
        self.at_pool = 0
        self.requested = requested
        self.body = body
        self.facts = facts
        self.why = why
        self.method = method
        self.cost_tokens = cost_tokens
        self.pinned = ""
        self.comes_back: tuple[ResumeToken, Point] | None = None
        self.deadline_s: float | None = None
        self.salt: str | None = None
        self.adds_usage = False
        self.is_open = False
        self.reserved_unix_s = 0.0
        self.sent_body: bytes | None = None
        self.ticket: Ticket | None = None
        self.tried: set[str] = set()
        self.attempts: list[Attempt] = []
        self.failure = ""
        self.reached = False
        self.usage: UsageReader | None = None
        self.series: Series | None = None
        self.span: Span | None = None
        self.bytes_out = 0
        self.decided_s = time.monotonic()
        self.queued_s: float | None = None
        self.granted_s: float | None = None
        self.first_byte_s: float | None = None

    @property
    def pool(self) -> str:
        """The model that is being tried."""
        return self.pools[self.at_pool]

    def pin(self, *, model: str, key: str) -> None:
        """Only this replica of this model can answer."""
        self.pools, self.pinned = (model,), key
        self.requested = self.requested or model

    def measured(self) -> Usage | None:
        """What the engine said of the tokens; None where it said nothing yet."""
        if self.usage is None:
            return None
        usage = self.usage.result()
        if self.comes_back is None or usage.completion_tokens is None:
            return usage
        had = self.comes_back[1].num_tokens  # another gateway counted that, and the prompt
        return Usage(prompt_tokens=0, completion_tokens=max(0, usage.completion_tokens - had), cached_tokens=0)

    def used_tokens(self, *, failed: bool) -> int | None:
        """Prompt and completion tokens to charge; None where the estimate must stand.

        failed: no engine did any work for it
        """
        if failed:
            return 0
        if self.usage is None or self.facts is None:
            return None
        usage = self.measured() or self.usage.result()
        prompt = self.facts.num_prompt_tokens_estimate if usage.prompt_tokens is None else usage.prompt_tokens
        if usage.completion_tokens is not None:
            return prompt + usage.completion_tokens
        if self.usage.num_events:  # an answer that was broken off: about a token an event
            return prompt + self.usage.num_events
        return prompt if usage.prompt_tokens is not None else None
