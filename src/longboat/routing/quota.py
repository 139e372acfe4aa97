"""Arithmetic of a tenant's limits: a sliding minute, a UTC day, requests at one time."""

from __future__ import annotations

from dataclasses import dataclass

from longboat.core.policy import TenantPolicy

__all__ = ("Counts", "Denied", "Limits", "check", "limits_of", "share_of", "sliding")

MINUTE_S = 60
DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class Denied:
    """A limit would be passed.

    limit: the field of ``TenantPolicy``; value: what is used of it, without this request
    retry_after_s: when the same request fits, if nothing else is sent; None: waiting does not help
    """

    limit: str
    value: int
    limit_value: int
    retry_after_s: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one counter may let through; None is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    concurrent_requests: int | None = None


@dataclass(slots=True, kw_only=True)
class Counts:
    """What was counted for a tenant: in one process, or summed over the processes that share.

    minute, day: number of the current window since the epoch (``now_s // 60``, ``now_s // 86400``)
    requests, tokens: of the current minute; previous_requests, previous_tokens: of the one before
    """

    minute: int = 0
    day: int = 0
    requests: int = 0
    previous_requests: int = 0
    tokens: int = 0
    previous_tokens: int = 0
    tokens_today: int = 0
    running: int = 0

    def roll(self, now_s: float) -> None:
        """Move the windows on to ``now_s`` (Unix seconds). A clock that went back changes nothing."""
        raise NotImplementedError


def limits_of(tenant: TenantPolicy, num_gateways: int = 1) -> Limits:
    """The tenant's limits, each gateway's part of them."""
    raise NotImplementedError


def share_of(limit: int | None, num_gateways: int) -> int | None:
    """One gateway's part of a limit: at least 1 of a limit that is not 0."""
    raise NotImplementedError


def sliding(current: int, previous: int, now_s: float) -> float:
    """Events of the last 60 s: the current minute's, and the part of the previous minute's still within them."""
    raise NotImplementedError


def check(limits: Limits, counts: Counts, *, tokens: int, now_s: float) -> Denied | None:
    """Whether one more request of ``tokens`` fits. Changes nothing; ``counts`` were rolled to ``now_s`` (Unix)."""
    raise NotImplementedError
