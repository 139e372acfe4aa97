"""Serve's declarative REST API on the cluster's dashboard: read what runs, put what should."""

from __future__ import annotations

from typing import Any

import httpx

from longboat.core.errors import ClusterError

__all__ = ("ServeRest",)

PATH = "/api/serve/applications/"


class ServeRest:
    """token: Ray's cluster token; empty on a cluster without authentication."""

    def __init__(self, dashboard_url: str, token: str, timeout_s: float = 30.0) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = dashboard_url
        self._client = httpx.Client(base_url=dashboard_url, headers=headers, timeout=timeout_s, trust_env=False)

    def details(self) -> dict[str, Any]:
        """Serve's view of all applications, deployments and replicas.

        Raises ClusterError when the dashboard does not answer.
        """
        answer: dict[str, Any] = self._call("GET").json()
        return answer

    def put(self, document: dict[str, Any]) -> None:
        """Make Serve run what ``document`` lists and end everything else that was deployed this way.

        Raises ClusterError when Serve refuses it.
        """
        self._call("PUT", document)

    def _call(self, method: str, document: dict[str, Any] | None = None) -> httpx.Response:
        try:
            response = self._client.request(method, PATH, json=document)
        except httpx.HTTPError as error:
            raise ClusterError(
                f"the cluster's dashboard at {self._client.base_url} does not answer: {error}",
                hint="the node that runs the head must be up, with Ray's dashboard on it",
            ) from error
        if response.status_code in (401, 403):
            raise ClusterError(
                "the cluster's dashboard did not accept the token",
                hint="copy the head's token file to ~/.ray/auth_token, or name it in RAY_AUTH_TOKEN_PATH",
            )
        if response.is_error:
            raise ClusterError(f"Serve answered {response.status_code}: {response.text[-500:]}", hint="longboat status")
        return response
