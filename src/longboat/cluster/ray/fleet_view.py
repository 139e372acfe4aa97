"""What every connection of a command to a cluster has: Serve's applications, and waiting for the controller."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Self

from longboat.cluster.fleet.applications import CONTROLLER_HINT, ControllerFailedError, ServeApplications
from longboat.cluster.fleet.serve_rest import ServeRest
from longboat.cluster.node.write_turn import writing
from longboat.core.errors import ClusterError

if TYPE_CHECKING:
    from longboat.cluster.protocol.messages import FleetReport

__all__ = ("FleetView",)


class FleetView(ABC):
    """A context manager; leaving it ends nothing on the cluster."""

    def __init__(self, gcs_address: str, dashboard: str, token: str) -> None:
        """dashboard: its URL, through which Serve is steered"""
        self.gcs_address = gcs_address
        self.rest = ServeRest(dashboard, token)
        self.apps = ServeApplications(self.rest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:  # noqa: B027
        """Close the connection, where there is one."""

    def writing(self) -> AbstractContextManager[None]:
        """Hold the turn to write the fleet's document. Raises ClusterError where others keep it."""
        return writing()

    @abstractmethod
    def report(self) -> FleetReport | None:
        """Return the controller's report. Raises ClusterError when it does not answer."""

    def try_report(self) -> FleetReport | None:
        """Return the controller's report, or None while it cannot be had."""
        try:
            return self.report()
        except ClusterError:
            return None

    def expect(self, document: str, timeout_s: float = 180.0) -> None:
        """Wait until the controller has taken over ``document``, or what another command put in its place since.

        Raises ClusterError when it has not after ``timeout_s``, ControllerFailedError as soon as it never will.
        """
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            try:
                if self.apps.has_taken_over(self.report(), document):
                    return
            except ControllerFailedError:
                raise
            except ClusterError:
                pass  # it is on its way
            time.sleep(0.1)
        raise ClusterError(f"the fleet's controller did not come up in {timeout_s:.0f} s", hint=CONTROLLER_HINT)

    def given_up(self) -> dict[str, str]:
        """Return model → why Serve stopped trying to start it."""
        return self.apps.given_up()
