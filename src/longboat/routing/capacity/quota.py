"""Computes a tenant's limits: a sliding minute, a UTC day, concurrent requests."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from longboat.core.policy import TenantPolicy

__all__ = ("LIMIT_NAMES", "Counts", "Denied", "Limits", "added", "check", "limits_of", "share_of", "sliding")

MINUTE_S: Final = 60
DAY_S: Final = 86_400
LIMIT_NAMES: Final = ("requests_per_minute", "tokens_per_minute", "tokens_per_day", "concurrent_requests")


@dataclass(frozen=True, kw_only=True)
class Denied:
    """A limit that the request would exceed."""

    limit: str  # the field of ``TenantPolicy``
    value: int  # what is used of the limit, without this request
    limit_value: int
    retry_after_s: int | None  # when the same request fits, if nothing else is sent; None: waiting does not help


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one counter. None means no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrent_requests: int | None = None

    @classmethod
    def of(cls, values: Iterable[int | None]) -> Limits:
        """Make limits of one value for each field, in their order."""
        return cls(**dict(zip(LIMIT_NAMES, values, strict=True)))

    @property
    def values(self) -> tuple[int | None, ...]:
        return (self.requests_per_minute, self.tokens_per_minute, self.tokens_per_day, self.concurrent_requests)


@dataclass(kw_only=True)
class Counts:
    """The counts of a tenant, in one process or summed over the processes that share."""

    minute: int = 0  # number of the current minute since the epoch (``now_s // 60``)
    day: int = 0  # number of the current day since the epoch (``now_s // 86400``)
    requests: int = 0  # in the current minute
    previous_requests: int = 0  # in the minute before
    tokens: int = 0  # in the current minute
    previous_tokens: int = 0  # in the minute before
    tokens_today: int = 0
    running: int = 0
    left_day: int = 0  # the day that was left when the clock went back
    left_tokens: int = 0  # its count then

    def roll(self, now_s: float) -> None:
        """Move the windows to ``now_s`` (Unix seconds).

        A clock that went back by a minute at most changes nothing. Where it went back further, the minute begins again,
        and today's count stays. Where it went back to an earlier day, the later one resumes its own count.
        """
        began_s = self.minute * MINUTE_S
        if began_s - MINUTE_S <= now_s < began_s + MINUTE_S:  # a day begins with a minute
            return
        minute, day = int(now_s // MINUTE_S), int(now_s // DAY_S)
        if minute != self.minute:
            follows = minute == self.minute + 1
            self.previous_requests = self.requests if follows else 0
            self.previous_tokens = self.tokens if follows else 0
            self.requests = self.tokens = 0
            self.minute = minute
        if day < self.day:
            self.left_day, self.left_tokens = self.day, self.tokens_today
        elif day > self.day:
            self.tokens_today = self.left_tokens if day == self.left_day else 0
        self.day = day


def added(parts: Iterable[Counts], now_s: float) -> Counts:
    """Add counts up, each rolled on to ``now_s``."""
    total = Counts(minute=int(now_s // MINUTE_S), day=int(now_s // DAY_S))
    for part in parts:
        part.roll(now_s)
        total.minute, total.day = max(total.minute, part.minute), max(total.day, part.day)
        total.requests += part.requests
        total.previous_requests += part.previous_requests
        total.tokens += part.tokens
        total.previous_tokens += part.previous_tokens
        total.tokens_today += part.tokens_today
        total.running += part.running
    return total


def limits_of(tenant: TenantPolicy, num_gateways: int = 1) -> Limits:
    """Return one gateway's part of the tenant's limits."""
    return Limits(
        requests_per_minute=share_of(tenant.requests_per_minute, num_gateways),
        tokens_per_minute=share_of(tenant.tokens_per_minute, num_gateways),
        tokens_per_day=share_of(tenant.tokens_per_day, num_gateways),
        concurrent_requests=share_of(tenant.concurrent_requests, num_gateways),
    )


def share_of(limit: int | None, num_gateways: int) -> int | None:
    """Return one gateway's part of a limit: at least 1 unless the limit is 0, so that no gateway refuses everything."""
    if limit is None or num_gateways <= 1:
        return limit
    return max(min(1, limit), limit // num_gateways)


def sliding(current: int, previous: int, now_s: float) -> float:
    """Estimate the events of the last 60 s: the current minute's, and the previous minute's still within them."""
    return current + previous * (1.0 - now_s % MINUTE_S / MINUTE_S)


def check(limits: Limits, counts: Counts, *, tokens: int, now_s: float) -> Denied | None:
    """Check whether one more request of ``tokens`` fits. Changes nothing; ``counts`` were rolled to ``now_s`` (Unix).

    Where several limits are exceeded, returns the one that takes longest to clear.
    """
    most = limits.concurrent_requests
    denied: list[Denied] = []
    if most is not None and counts.running >= most:
        wait_s = 1 if most > 0 else None
        denied.append(Denied(limit="concurrent_requests", value=counts.running, limit_value=most, retry_after_s=wait_s))
    minutes = (
        ("requests_per_minute", limits.requests_per_minute, counts.requests, counts.previous_requests, 1),
        ("tokens_per_minute", limits.tokens_per_minute, counts.tokens, counts.previous_tokens, tokens),
    )
    for limit, limit_value, current, previous, amount in minutes:
        if limit_value is None or sliding(current, previous, now_s) + amount <= limit_value:
            continue
        wait_s = _minute_wait_s(current, previous, amount, limit_value, now_s)
        value = math.ceil(sliding(current, previous, now_s))
        denied.append(Denied(limit=limit, value=value, limit_value=limit_value, retry_after_s=wait_s))
    daily = limits.tokens_per_day
    if daily is not None and counts.tokens_today + tokens > daily:
        wait_s = math.floor(DAY_S - now_s % DAY_S) + 1 if tokens <= daily else None
        denied.append(
            Denied(limit="tokens_per_day", value=counts.tokens_today, limit_value=daily, retry_after_s=wait_s)
        )
    return max(denied, key=_severity) if denied else None


def _severity(denied: Denied) -> float:
    return math.inf if denied.retry_after_s is None else denied.retry_after_s


def _minute_wait_s(current: int, previous: int, amount: int, limit: int, now_s: float) -> int | None:
    """Return the whole seconds until ``amount`` fits a sliding minute; None if it exceeds the limit by itself."""
    if amount > limit:
        return None
    into_s = now_s % MINUTE_S
    if current + amount <= limit:
        fits_s = MINUTE_S * (1.0 - (limit - current - amount) / previous)
    else:
        fits_s = MINUTE_S + MINUTE_S * (1.0 - (limit - amount) / current)
    return max(1, math.ceil(fits_s - into_s + 1e-6))
