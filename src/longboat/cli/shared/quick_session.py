"""A command's view of the cluster through this node's daemon: it needs no Ray, which takes seconds to load."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longboat.cluster.fleet.applications import CONTROLLER_RESTARTS
from longboat.cluster.host.cluster_token import cluster_token
from longboat.cluster.node.door_client import DoorClient, DoorClosedError
from longboat.cluster.node.write_turn import writing
from longboat.cluster.ray.fleet_view import FleetView
from longboat.core.errors import ClusterError
from longboat.user import user_home

if TYPE_CHECKING:
    from longboat.cluster.protocol.messages import FleetReport
    from longboat.cluster.ray.session import Session
    from longboat.core.topology import Node

__all__ = ("DaemonMarks", "QuickSession")

_END_NODES_S = 40.0


class QuickSession(FleetView):
    """The questions of the quick commands, as ``Session`` answers them. It exists only while a fleet is up."""

    def __init__(self, run: Path, env: Mapping[str, str], whole: Callable[[], Session]) -> None:
        """whole: makes a session of Ray, for what the daemon cannot do

        Raises ClusterError where no daemon answers, or it leads to another cluster than ``env``.
        """
        self._whole = whole
        self._door = DoorClient(run)
        found = self._door.ask("cluster")
        if not found["dashboard"] or str(found["gcs_address"]) != env["RAY_ADDRESS"]:
            raise ClusterError("this node's daemon does not know the cluster's dashboard yet")
        token = cluster_token({**os.environ, **env}, user_home())
        super().__init__(env["RAY_ADDRESS"], str(found["dashboard"]), token)
        # Seconds since this node heard the controller; None: an older daemon does not say it.
        self.heard_s: float | None = found.get("heard_s")

    def writing(self) -> AbstractContextManager[None]:
        """Hold the turn to write the fleet's document, by marks that this node's daemon sets."""
        return writing(DaemonMarks(self._door))

    def report(self) -> FleetReport | None:
        """Return the controller's report. Raises ClusterError when it does not answer."""
        from longboat.cluster.protocol.messages import FleetReport

        try:
            report: FleetReport = self._door.ask_for(FleetReport, "controller", "report")
        except DoorClosedError:
            raise
        except ClusterError as error:
            raise ClusterError(error.message, hint=error.hint or CONTROLLER_RESTARTS) from error
        return report

    def nodes(self) -> tuple[Node, ...]:
        """Return all nodes that are alive."""
        from longboat.cluster.protocol.node_entry import read_node

        return tuple(read_node(entry) for entry in self._door.ask("nodes") if entry["Alive"])

    def scaling_history(self) -> dict[str, Any]:
        """Return what the controller's scaler saw and decided lately."""
        return dict(self._door.ask("controller", "scaling_history"))

    def ask_daemon(self, node_id: str, method: str, *args: object) -> Any:
        """Call the daemon of a node. Raises ClusterError when it has none or does not answer."""
        plain = [arg.decode() if isinstance(arg, bytes) else arg for arg in args]
        return self._door.ask("node", node_id, method, *plain)

    def end_unplaced(self) -> None:
        """End replicas that Serve stops and that never had a place: it would wait for each of them."""
        try:
            self._door.ask("controller", "end_unplaced")
        except ClusterError:  # without its controller, a session of Ray does it
            with self._whole() as session:
                session.end_unplaced()

    def end_nodes(self) -> None:
        """Have the controller end gateways, zygotes and daemons; this node's daemon may end before it can tell."""
        try:
            self._door.ask("controller", "end_nodes", timeout_s=_END_NODES_S)
        except ClusterError as error:
            if self.left_daemon():
                raise ClusterError(f"the controller did not shut the nodes down ({error.message})") from error

    def left_daemon(self) -> bool:
        """Return whether this node's daemon still answers."""
        try:
            self._door.ask("cluster", timeout_s=2.0)
        except ClusterError:
            return False
        return True

    def end_daemons(self) -> tuple[str, ...]:
        """End gateways, zygotes and daemons without a controller; returns the nodes that did not confirm it."""
        with self._whole() as session:
            return session.end_daemons()

    def need_no_nodes(self) -> str:
        """Ask Ray's autoscaler for nothing any more, without a controller; returns why that failed, empty otherwise."""
        with self._whole() as session:
            return session.need_no_nodes()


class DaemonMarks:
    """The cluster's marks, through this node's daemon."""

    def __init__(self, door: DoorClient) -> None:
        self._door = door

    def add(self, name: str, value: bytes) -> bool:
        return bool(self._door.ask("mark", "add", name, value.decode()))

    def put(self, name: str, value: bytes) -> None:
        self._door.ask("mark", "put", name, value.decode())

    def get(self, name: str) -> bytes | None:
        found = self._door.ask("mark", "get", name)
        return None if found is None else str(found).encode()

    def remove(self, name: str) -> None:
        self._door.ask("mark", "remove", name)
