"""The applications that Serve runs: read, waited for and ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from longboat.cluster.fleet.deployed import (
    ENDING,
    Applications,
    controller_values,
    counts_in_force,
    document_with,
    is_ours,
)
from longboat.cluster.fleet.serve_rest import ServeRest
from longboat.cluster.protocol.names import CONTROLLER_APP, MODEL_APP_PREFIX
from longboat.core.errors import ClusterError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from longboat.cluster.protocol.messages import FleetReport

__all__ = ("CONTROLLER_HINT", "CONTROLLER_RESTARTS", "ControllerFailedError", "FleetSession", "ServeApplications")

GIVEN_UP_EVERY_S = 3.0
GONE_EVERY_S = 0.2
UNPLACED_FIRST_S, UNPLACED_EVERY_S = 0.5, 1.0
CONTROLLER_HINT = (
    "ray status shows the cluster; the controller's log is in logs/serve of Ray's session folder on the head; "
    "longboat down ends the fleet in any case"
)
CONTROLLER_RESTARTS = f"it restarts by itself within seconds; if it does not: {CONTROLLER_HINT}"


class ControllerFailedError(ClusterError):
    """Serve cannot start, or keep up, the fleet's controller: waiting does not help."""


class ServeApplications:
    """All applications of one cluster, as Serve's REST API lists them."""

    def __init__(self, rest: ServeRest) -> None:
        self._rest = rest
        self._given_up: dict[str, str] = {}
        self._given_up_at_s = -GIVEN_UP_EVERY_S

    def all(self) -> dict[str, dict[str, Any]]:
        """Serve's applications by name."""
        found: dict[str, dict[str, Any]] = self._rest.details().get("applications", {})
        return found

    def deployed_models(self) -> dict[str, dict[str, Any]]:
        """Return model → its application as it was declared."""
        found = {}
        for name, app in self.all().items():
            if name.startswith(MODEL_APP_PREFIX) and app.get("deployed_app_config") and app.get("status") != "DELETING":
                found[name.removeprefix(MODEL_APP_PREFIX)] = app["deployed_app_config"]
        return found

    def counts(self) -> dict[str, int]:
        """Return model → the number of replicas that Serve is to keep."""
        return counts_in_force(self.all())

    def foreign(self) -> list[dict[str, Any]]:
        """Return the declared configuration of applications that are not Longboat's."""
        return _foreign(self.all())

    def has_taken_over(self, report: FleetReport | None, document: str) -> bool:
        """Return whether the controller has ``document``, or what another command put in its place since."""
        if report is None or report.document == document:
            return report is not None
        return report.document == controller_values(self.all()).get("text")

    def has_fleet(self) -> bool:
        """Return whether a controller is deployed."""
        return CONTROLLER_APP in self.all()

    def check_controller(self) -> None:
        """Check the controller.

        Raises ControllerFailedError when Serve has given it up, ClusterError while Serve replaces it.
        """
        _check(self.all())

    def given_up(self) -> dict[str, str]:
        """Return model → why Serve stopped trying to start it. Serve is asked only every few seconds."""
        if time.monotonic() - self._given_up_at_s > GIVEN_UP_EVERY_S:
            self._given_up, self._given_up_at_s = self._ask_given_up(), time.monotonic()
        return self._given_up

    def _ask_given_up(self) -> dict[str, str]:
        return {
            name.removeprefix(MODEL_APP_PREFIX): str(app.get("message") or "deploy failed")
            for name, app in self.all().items()
            if name.startswith(MODEL_APP_PREFIX) and app.get("status") == "DEPLOY_FAILED"
        }

    def end_models(self) -> None:
        """Have Serve end the applications of all models. The controller stays; commands refuse to change it then."""
        apps = self.all()
        kept = [*_foreign(apps), *_controller_that_ends(apps)]
        self._rest.put({"proxy_location": "Disabled", "applications": kept})

    def end_all(self) -> None:
        """Have Serve end all that is Longboat's."""
        self._rest.put({"proxy_location": "Disabled", "applications": self.foreign()})

    def wait_models_gone(self, end_unplaced: Callable[[], None], timeout_s: float = 90.0) -> None:
        """Wait until no model is deployed. end_unplaced: ends replicas that never had a place, for which Serve waits"""
        self._wait_gone(timeout_s, lambda name: name.startswith(MODEL_APP_PREFIX), end_unplaced)

    def wait_gone(self, end_unplaced: Callable[[], None], timeout_s: float = 90.0) -> None:
        """Wait until nothing of Longboat is deployed."""
        self._wait_gone(timeout_s, is_ours, end_unplaced)

    def _wait_gone(self, timeout_s: float, is_meant: Callable[[str], bool], end_unplaced: Callable[[], None]) -> None:
        begin_s = time.monotonic()
        deadline_s, next_s = begin_s + timeout_s, begin_s + UNPLACED_FIRST_S
        while left := [name for name in self.all() if is_meant(name)]:
            if time.monotonic() > deadline_s:
                raise ClusterError(
                    f"{', '.join(left)} did not end in {timeout_s:.0f} s",
                    hint="longboat node stop on their nodes ends them",
                )
            if time.monotonic() > next_s:
                next_s += UNPLACED_EVERY_S
                end_unplaced()
            time.sleep(GONE_EVERY_S)


class FleetSession(Protocol):
    """The parts of a session with the cluster that a change of the running fleet needs."""

    @property
    def apps(self) -> ServeApplications: ...
    @property
    def rest(self) -> ServeRest: ...
    def writing(self) -> AbstractContextManager[None]: ...


def _foreign(apps: Applications) -> list[dict[str, Any]]:
    return [
        app["deployed_app_config"]
        for name, app in apps.items()
        if not is_ours(name) and app.get("deployed_app_config") and app.get("status") != "DELETING"
    ]


def _controller_that_ends(apps: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the controller's application with no model that stays: replicas then wait only briefly for answers."""
    if values := controller_values(apps):
        document = document_with(apps, {**values, "updates": {}, "rollouts": {}, ENDING: True}, ends=True)
        return [app for app in document["applications"] if app["name"] == CONTROLLER_APP]
    app = apps.get(CONTROLLER_APP, {}).get("deployed_app_config")
    return [app] if app else []


def _check(apps: Mapping[str, Mapping[str, Any]]) -> None:
    controller = apps.get(CONTROLLER_APP, {})
    status, words = controller.get("status"), controller.get("message") or "Serve does not say why"
    if status == "DEPLOY_FAILED":
        raise ControllerFailedError(f"the fleet's controller is {status}: {words}", hint=CONTROLLER_HINT)
    if status == "UNHEALTHY":  # it ran, and Serve starts another one
        raise ClusterError(f"the fleet's controller is {status}: {words}", hint=CONTROLLER_RESTARTS)
