"""An external model as one process knows it: whether its addresses take requests, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Protocol

from longboat.core.external import ExternalModel
from longboat.core.policy import TenantPolicy
from longboat.gateway.external.budgets import budgets_of
from longboat.gateway.http.responses import Refusal
from longboat.routing.capacity.quota import Denied

__all__ = ("HOLD_S", "Outside", "retry_after_s")

HOLD_S = 1.0
"""How long an address is left alone that answers 429 without saying for how long."""

LONGEST_HOLD_S = 86_400.0
_WORDS = {"requests_per_day": "requests", "tokens_per_day": "tokens"}


class Held(Protocol):
    """An endpoint of an external model."""

    @property
    def held_until_s(self) -> float:
        """When it takes requests again, on the monotonic clock."""

    @property
    def suspect(self) -> bool:
        """Whether it failed a moment ago."""


class Outside:
    """What one external model shares between its requests in this process."""

    __slots__ = ("budgets", "labels", "model", "problem")

    def __init__(self, model: ExternalModel, problem: str = "") -> None:
        """problem: why no request can be sent; empty: nothing is known"""
        self.model = model
        self.problem = problem
        self.labels: tuple[str, ...] = ()  # by which its endpoints are known
        self.budgets: tuple[tuple[str, TenantPolicy], ...] = budgets_of(model)

    @property
    def is_counted(self) -> bool:
        """Whether its requests have a bill."""
        return bool(self.budgets) or self.model.price is not None

    def refusal(self, path: bytes, endpoints: Sequence[Held], now_s: float, *, is_last: bool) -> Refusal | None:
        """Return why no request on this path is sent now; None where one can be.

        endpoints: all of the model; is_last: no other model can be tried, so one that failed lately is tried again
        """
        if self.problem:
            return Refusal(status=503, message=self._words(self.problem), code="external_unusable")
        if not self._offers(path):
            message = f"The external model {self.model.name!r} offers no such path: it has {self._paths}."
            return Refusal(status=404, message=message, code="path_not_offered", param="model")
        waits = [endpoint.held_until_s - now_s for endpoint in endpoints]
        if waits and min(waits) > 0:
            seconds = max(1, math.ceil(min(waits)))
            message = self._words(f"it asked for a pause. Try again in {seconds} s")
            return Refusal(status=429, message=message, code="external_busy", retry_after_s=seconds)
        if not is_last and all(endpoint.suspect for endpoint in endpoints):
            return Refusal(status=503, message=self._words("its addresses failed a moment ago"), code="external_down")
        return None

    def over_budget(self, kind: str, denied: Denied) -> Refusal:
        """Return the refusal for a request that would exceed a daily limit."""
        limit = getattr(self.model.limits, kind)
        unit = _WORDS.get(kind) or (self.model.price.currency if self.model.price is not None else "")
        left = "Try again after midnight UTC." if denied.retry_after_s is not None else "This request alone exceeds it."
        message = self._words(f"its {limit:g} {unit} of today are used up ({kind}). {left}", end="")
        return Refusal(status=429, message=message, code=f"external_{kind}", retry_after_s=denied.retry_after_s)

    @property
    def _paths(self) -> str:
        return "/v1/messages" if self.model.api == "anthropic" else "the paths of OpenAI's API below /v1"

    def _offers(self, path: bytes) -> bool:
        is_messages = path.startswith(b"/v1/messages")
        return is_messages if self.model.api == "anthropic" else path.startswith(b"/v1/") and not is_messages

    def _words(self, why: str, end: str = ".") -> str:
        return f"The external model {self.model.name!r} cannot be used now: {why}{end}"


def retry_after_s(value: str | None, now_unix_s: float) -> float:
    """Return the seconds of a Retry-After header: a number, or a date."""
    if value is None:
        return HOLD_S
    if value.isascii() and value.strip().isdigit():
        return min(float(value), LONGEST_HOLD_S)
    try:
        at = parsedate_to_datetime(value)
        seconds = at.replace(tzinfo=at.tzinfo or UTC).timestamp() - now_unix_s
    except (TypeError, ValueError, OverflowError):
        return HOLD_S
    return min(max(seconds, 0.0), LONGEST_HOLD_S)
