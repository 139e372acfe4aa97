"""How many answers that an engine had left were resumed, as gateways count it themselves."""

from __future__ import annotations

import contextlib
from collections import Counter

from longboat.core.errors import ClusterError
from longboat.gateway.admin.control_client import GatewayControl
from longboat.gateway.admin.node_query import MetricsQuery

__all__ = ("ResumeCounts",)


class ResumeCounts:
    """Of one gateway, and of each process that it was: one that is killed has counted until it was asked last."""

    def __init__(self) -> None:
        self._by_process: dict[str, dict[str, int]] = {}

    async def ask(self, control: GatewayControl, process: str) -> None:
        """process: a name that no other one has. One that does not answer leaves what is known of it."""
        with contextlib.suppress(ClusterError):
            counted = (await control.ask(MetricsQuery())).get("resumes", ())
            self._by_process[process] = {f"{reason} {result}": count for reason, result, count in counted}

    def total(self) -> Counter[str]:
        """By reason and result."""
        total: Counter[str] = Counter()
        for counted in self._by_process.values():
            total.update(counted)
        return total
