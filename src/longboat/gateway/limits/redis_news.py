"""What a gateway has to report to Redis: its tenants' running requests, and their use since the last batch."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from longboat.core.policy import TenantPolicy
from longboat.gateway.limits.redis_script import Ask, Batch, News, write_batch

__all__ = ("PendingNews",)


class PendingNews:
    """Collects changes until they go out with the next batch."""

    def __init__(self, fleet: str) -> None:
        self._prefix = f"{{longboat:{fleet}}}"
        # the name of this gateway in Redis
        self._gateway = secrets.token_hex(8)
        # of the last batch
        self._number = 0
        self._tenants: dict[str, TenantPolicy] = {}
        # requests of each tenant that run in this gateway
        self.running: dict[str, int] = {}
        # what each tenant used that Redis does not know
        self._news: dict[str, News] = {}
        # tenants for the next batch
        self.changed: set[str] = set()

    def of(self, tenant: TenantPolicy) -> News:
        """Return the tenant's news, to add to them; the tenant goes into the next batch."""
        self._tenants[tenant.name] = tenant
        self.changed.add(tenant.name)
        return self._news.setdefault(tenant.name, News())

    def add_running(self, tenant: TenantPolicy, change: int) -> None:
        """Count requests that began (1) or ended (-1)."""
        self.running[tenant.name] = self.running.get(tenant.name, 0) + change

    def repeat_running(self) -> None:
        """Report all running requests again: Redis took this gateway for dead, or does not know it."""
        self.changed.update(name for name, running in self.running.items() if running)

    def end_running(self) -> None:
        """Report that nothing runs here any more."""
        self.running.clear()
        self.changed.update(self._tenants)

    def batch(self, asks: Sequence[Ask], *, leaves: bool = False) -> Batch:
        """Write the next batch with all news. leaves: it is this gateway's last one."""
        self._tenants.update((ask.tenant.name, ask.tenant) for ask in asks)
        names = self.changed | {ask.tenant.name for ask in asks}
        news, self._news = self._news, {}
        tenants = {name: (self._tenants[name], self.running.get(name, 0), news.get(name, News())) for name in names}
        self.changed = set()
        self._number += 1
        return write_batch(self._prefix, self._gateway, self._number, tenants=tenants, asks=asks, leaves=leaves)
