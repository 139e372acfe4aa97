"""A cluster without Ray: what Serve lists, and the daemons of its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from longboat.cluster.fleet.applications import ServeApplications
from longboat.cluster.protocol.names import CONTROLLER_APP, daemon_name
from longboat.cluster.ray.session import Session

__all__ = ("FakeRay", "FakeServe", "FakeSession", "application")


class RayError(Exception):
    """Stands for Ray's own."""


def application(name: str, status: str = "RUNNING", message: str = "") -> dict[str, Any]:
    """An application as Serve lists it."""
    return {"status": status, "message": message, "deployed_app_config": {"name": name, "args": {"digest": "d"}}}


@dataclass
class FakeServe:
    """Ends at once what a document does not list, and deploys what it does."""

    apps: dict[str, dict[str, Any]]
    puts: list[dict[str, Any]] = field(default_factory=list)
    url: str = "http://dashboard"

    def details(self) -> dict[str, Any]:
        return {"applications": self.apps}

    def put(self, document: dict[str, Any]) -> None:
        self.puts.append(document)
        names = [app["name"] for app in document["applications"]]
        self.apps = {name: self.apps.get(name, application(name)) for name in names}


@dataclass
class FakeRay:
    """daemons: node → whether it answers."""

    daemons: dict[str, bool]
    events: list[str] = field(default_factory=list)
    exceptions: Any = field(default_factory=lambda: SimpleNamespace(RayError=RayError))

    def nodes(self) -> list[dict[str, Any]]:
        return [{"NodeID": name, "NodeManagerAddress": "h", "Resources": {}, "Alive": True} for name in ("n1", "n2")]

    def get_actor(self, name: str, namespace: str) -> Any:
        for node, answers in self.daemons.items():
            if daemon_name(node) == name:
                return SimpleNamespace(node=node, shutdown=SimpleNamespace(remote=partial(tuple, (node, answers))))
        raise ValueError(name)

    def get(self, ref: tuple[str, bool], timeout: float) -> None:
        node, answers = ref
        if not answers:
            raise RayError
        self.events.append(f"shut down {node}")

    def kill(self, daemon: Any) -> None:
        self.events.append(f"killed {daemon.node}")

    def shutdown(self) -> None:
        self.events.append("left")


class FakeSession(Session):
    """A session on fakes; its controller never answers."""

    gcs_address = "127.0.0.1:6379"
    autoscaler_failure = ""

    def __init__(self, apps: Mapping[str, dict[str, Any]], daemons: dict[str, bool] | None = None) -> None:
        self.serve = FakeServe(dict(apps))
        self.ray = FakeRay(daemons or {})
        self.rest = self.serve  # type: ignore[assignment]
        self.apps = ServeApplications(self.rest)
        self._ray = self.ray
        self._controller = None

    def need_no_nodes(self) -> str:
        self.ray.events.append("asked for no nodes")
        return self.autoscaler_failure

    def end_unplaced(self) -> None:
        self.ray.events.append("ended replicas without a place")

    def _controller_handle(self) -> Any:
        raise TimeoutError(CONTROLLER_APP)
