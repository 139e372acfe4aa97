"""Counters that all gateways of a fleet share through Redis; the node's own ones while Redis is away."""

from __future__ import annotations

from collections.abc import Mapping

from longboat.core.policy import TenantPolicy
from longboat.gateway.counters import Counters
from longboat.routing.quota import Counts, Denied

__all__ = ("RedisCounters",)


class RedisCounters:
    """Same methods as ``Counters``; only ``reserve`` is awaited (50 ms at most). The others never wait.

    fallback: counts everything too, and decides while Redis is away, by the node's part of the limits
    """

    remote = True

    def __init__(self, url: str, *, fleet: str, fallback: Counters) -> None:
        """url: ``redis://[user:password@]host:port/db``, ``rediss://`` or ``unix://``; it is never shown.

        :raises UserInputError: the URL is none, or the ``redis`` extra is not installed
        """
        raise NotImplementedError

    async def start(self) -> None:
        """Connect. A Redis that is away is no error: it is asked again every second."""
        raise NotImplementedError

    async def reserve(self, tenant: TenantPolicy, *, tokens: int, now_s: float) -> Denied | None:
        raise NotImplementedError

    def settle(
        self, tenant: TenantPolicy, *, reserved_tokens: int, used_tokens: int, reserved_s: float, now_s: float
    ) -> None:
        raise NotImplementedError

    def release(self, tenant: TenantPolicy) -> None:
        raise NotImplementedError

    def counts_of(self, tenant: str, now_s: float) -> Counts:
        """The node's own counts: for the admin API; the fleet's are in Redis."""
        raise NotImplementedError

    def restore_today(self, tokens: Mapping[str, int], *, now_s: float) -> None:
        raise NotImplementedError

    @property
    def degraded(self) -> bool:
        """Whether the node decides by itself now. ``num_degraded``: requests decided so since the start."""
        raise NotImplementedError

    num_degraded: int

    async def stop(self) -> None:
        """Send what is left, take this gateway's running requests off, disconnect: 1 s at most."""
        raise NotImplementedError
