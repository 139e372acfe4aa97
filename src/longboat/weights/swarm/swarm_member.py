"""A node as a member of the swarm: it gives its pieces, offers its whole models, and may be the tracker."""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType

from longboat.weights.pieces.tracker import StorageLimits, Tracker
from longboat.weights.store.store import Store
from longboat.weights.swarm.node_server import NodeServer
from longboat.weights.swarm.seeder import Seeder
from longboat.weights.swarm.swarm_link import SwarmAddress

__all__ = ("SwarmMember",)


class SwarmMember:
    """This node in the swarm, while the context manager is open.

    trackers: HOST:PORT of the nodes that may be the tracker, in the same order everywhere; none: this node
    """

    def __init__(
        self,
        store: Store,
        token: str,
        address: str,
        port: int = 0,
        *,
        trackers: tuple[str, ...] = (),
        limits: StorageLimits | None = None,
    ) -> None:
        self.server = NodeServer(store, token, address, port, Tracker(limits or StorageLimits()))
        self.address = SwarmAddress(member=self.server.at, trackers=trackers or (self.server.at,), token=token)
        self.seeder = Seeder(store, self.address)

    def follow(self, trackers: tuple[str, ...]) -> str:
        """Offer models to these trackers from now on; return HOST:PORT at which this node gives pieces."""
        if trackers and trackers != self.address.trackers:
            self.address = replace(self.address, trackers=trackers)
            self.seeder.follow(self.address)
        return self.address.member

    def limit(self, limits: StorageLimits) -> None:
        """Let the tracker of this node ask the storage for no more than this from now on."""
        if self.server.tracker is not None:
            self.server.tracker.limits = limits

    def start(self) -> None:
        """Begin to give pieces and to offer models."""
        self.server.start()
        self.seeder.start()

    def stop(self) -> None:
        """Leave the swarm; other nodes notice within seconds."""
        self.seeder.stop()
        self.server.stop()

    def __enter__(self) -> SwarmMember:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
