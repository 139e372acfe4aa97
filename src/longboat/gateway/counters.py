"""What tenants use, counted against their limits: the contract of all counters, and those of one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from longboat.core.policy import TenantPolicy
from longboat.routing.quota import Counts, Denied

__all__ = ("Counters",)


class Counters(Protocol):
    """Counts requests. Every request that ``reserve`` lets in gets one ``settle`` and one ``release``, in any order.

    A request counts for the minute and the UTC day in which it was reserved, whenever it ends.
    """

    remote: bool
    """Whether ``reserve`` must be awaited: see ``RedisCounters``, which has all the other methods as they are here."""

    num_gateways: int
    """Nodes that share each limit without knowing of each other: each keeps its part. May be set at any time."""

    def reserve(self, tenant: TenantPolicy, *, tokens: int, now_s: float) -> Denied | None:
        """Count one request in, if no limit of its tenant forbids it. Of a denied one nothing is counted.

        tokens: estimate of prompt and completion; now_s: Unix seconds
        """
        ...

    def charge(self, tenant: TenantPolicy, *, tokens: int, now_s: float) -> None:
        """Count one request in, whatever the limits say."""
        ...

    def settle(
        self, tenant: TenantPolicy, *, reserved_tokens: int, used_tokens: int, reserved_s: float, now_s: float
    ) -> None:
        """Put what was used in the place of what was reserved at ``reserved_s`` (the ``now_s`` of ``reserve``)."""
        ...

    def release(self, tenant: TenantPolicy) -> None:
        """The request no longer runs or waits."""
        ...

    def counts_of(self, tenant: str, now_s: float) -> Counts:
        """What is counted, summed over everyone who shares these counters."""
        ...

    def restore_today(self, tokens: Mapping[str, int], *, now_s: float) -> None:
        """Count at least so many tokens by tenant for this UTC day: what was used before a restart."""
        ...

    def close(self) -> None:
        """Give up this process's part of shared counters. Nothing is counted afterwards."""
        ...
