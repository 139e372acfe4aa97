"""Serve's declarative REST API on the cluster's dashboard: read what runs, put what should. Imports nothing heavy."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlsplit

from longboat.cluster.host.cluster_token import REFUSED_HINT
from longboat.cluster.node.head_question import HeadAwayError
from longboat.cluster.node.write_turn import check_turn, warn_if_late
from longboat.cluster.protocol.names import SUPERVISOR_DEPLOYMENT, model_app_name
from longboat.core.errors import ClusterError

__all__ = ("DashboardAwayError", "ServeRest")

PATH = "/api/serve/applications/"
SCALE_PATH = "/api/v1/applications/{app}/deployments/{deployment}/scale"
_REFUSED = (401, 403)
_FIRST_ERROR = 400


class DashboardAwayError(HeadAwayError):
    """The dashboard does not answer: the head is away, or has just been started."""


class ServeRest:
    """token: Ray's cluster token; empty on a cluster without authentication."""

    def __init__(self, dashboard_url: str, token: str, timeout_s: float = 30.0) -> None:
        self.url = dashboard_url
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout_s

    def details(self) -> dict[str, Any]:
        """Serve's view of all applications, deployments and replicas.

        Raises DashboardAwayError when the dashboard does not answer.
        """
        answer: dict[str, Any] = json.loads(self._call("GET", PATH))
        return answer

    def put(self, document: dict[str, Any]) -> None:
        """Make Serve run what ``document`` lists and end everything else that was deployed this way.

        Raises ClusterError when Serve refuses it, TurnOverError where the thread's turn to write is over.
        """
        check_turn()
        self._call("PUT", PATH, document)
        warn_if_late()

    def scale(self, model: str, replicas: int) -> None:
        """Give a model another number of replicas, and change nothing else; a document that is put later keeps it.

        Raises ClusterError when Serve refuses it.
        """
        path = SCALE_PATH.format(app=quote(model_app_name(model), safe=""), deployment=SUPERVISOR_DEPLOYMENT)
        self._call("POST", path, {"target_num_replicas": replicas})

    def _call(self, method: str, path: str, document: dict[str, Any] | None = None) -> bytes:
        """Return the body of the reply. Each call has its own connection: the threads of a loop share this object."""
        from http.client import HTTPConnection, HTTPException  # status loads this module, and calls nothing

        place = urlsplit(self.url)
        connection = HTTPConnection(place.hostname or "", place.port or 80, timeout=self._timeout_s)
        body = json.dumps(document) if document is not None else None
        headers = {**self._headers, "Content-Type": "application/json"} if body else self._headers
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            read, status = response.read(), response.status
        except (OSError, HTTPException) as error:
            raise DashboardAwayError(
                f"the cluster's dashboard at {self.url} does not answer: {error}",
                hint="the node that runs the head must be up, with Ray's dashboard on it",
            ) from error
        finally:
            connection.close()
        if status in _REFUSED:
            raise ClusterError(
                "the cluster's dashboard did not accept the token",
                hint=REFUSED_HINT,
            )
        if status >= _FIRST_ERROR:
            told = read.decode(errors="replace")[-500:]
            raise ClusterError(f"Serve answered {status}: {told}", hint="longboat status")
        return read
