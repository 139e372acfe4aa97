"""Takes the steps of one host, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from longboat.core.errors import ClusterError
from longboat.hosts.plan.steps import Kind
from longboat.hosts.remote.actions import ACTIONS, RemoteHost

__all__ = ("HostWork", "Told")

LIFE = frozenset((Kind.START, Kind.RESTART))
"""Steps that wait for their turn among the hosts."""
AFTER = frozenset((Kind.TIDY, Kind.FLEET))
BEFORE = frozenset(Kind) - LIFE - AFTER

Told = Callable[[str, str], None]
"""Called with a host and what happens there now."""


@dataclass(frozen=True, slots=True)
class HostWork:
    """What is done on one host."""

    host: RemoteHost
    tell: Told

    @property
    def name(self) -> str:
        """The host's name."""
        return self.host.plan.host.host

    async def install(self) -> None:
        """Take the steps that touch no running node."""
        await self._take(BEFORE)

    async def live(self) -> None:
        """Start the node, or restart it."""
        await self._take(LIFE)

    async def finish(self) -> None:
        """Take what comes after the node is up."""
        await self._take(AFTER)

    async def _take(self, kinds: Collection[Kind]) -> None:
        for step in self.host.plan.steps:
            if step.kind not in kinds:
                continue
            self.tell(self.name, step.what)
            try:
                await ACTIONS[step.kind](self.host, step)
            except ClusterError as error:
                raise ClusterError(f"{step.what}: {error.message}", hint=error.hint) from None
