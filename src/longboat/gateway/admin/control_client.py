"""The other end of a gateway's control socket, for whoever starts and steers gateways. Imports nothing heavy."""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import orjson

from longboat.core.errors import ClusterError
from longboat.core.policy import Policy
from longboat.core.states import EndpointTable
from longboat.gateway.config import GatewayConfig, encode_config
from longboat.gateway.http.message import ask
from longboat.gateway.upstreams.table_document import encode_table

__all__ = ("GatewayControl", "encode_policy", "gateway_command", "gateway_stdin")

_MAX_ANSWER_BYTES = 256 * 1024 * 1024


def gateway_command(config: GatewayConfig | None = None) -> list[str]:
    """The command line that starts a gateway. Its configuration goes to its stdin: see :func:`gateway_stdin`.

    The configuration holds a secret and so is no argument; ``config`` is taken for callers that have it at hand.
    """
    return [sys.executable, "-P", "-m", "longboat.gateway"]


def gateway_stdin(config: GatewayConfig) -> bytes:
    """The bytes to write to the new gateway's stdin; then close it."""
    return encode_config(config)


def encode_policy(policy: Policy) -> bytes:
    """The document that the control socket takes. Equal policies give equal bytes. It holds secrets."""
    return msgspec.json.encode(policy, order="deterministic")


class GatewayControl:
    """Calls one gateway; a connection per call, so that a gateway that was replaced is no trouble.

    Every method raises ClusterError where the gateway is gone, does not answer in ``timeout_s``, or says no.
    """

    def __init__(self, socket_path: str, token: str, *, timeout_s: float = 10.0, from_worker: bool = False) -> None:
        """from_worker: a worker asks its parent; the parent then does not take it for a sign of its owner's life."""
        self._path = socket_path
        self._token = token
        self._timeout_s = timeout_s
        self._caller = {"x-longboat-caller": "worker"} if from_worker else {}

    async def put_table(self, epoch: str, table: EndpointTable) -> bool:
        """False where the gateway has a newer version of this epoch."""
        answer = await self._call("PUT", "table", encode_table(epoch, table))
        return bool(answer["accepted"])

    async def put_policy(self, policy: Policy | bytes) -> bool:
        """Who may ask for what, from now on. bytes: a policy as JSON, whose digest the state then tells."""
        document = policy if isinstance(policy, bytes) else encode_policy(policy)
        return bool((await self._call("PUT", "policy", document))["accepted"])

    async def state(self) -> dict[str, Any]:
        """pid, version, epoch, host, port, in_flight, requests_total, fleet, uptime_s, processes, and more."""
        return await self._call("GET", "state")

    # what all processes of the node know together; ``missing`` in each document names those that did not answer

    async def metrics(self) -> dict[str, Any]:
        """A snapshot that ``metrics_text.render`` takes."""
        return await self._call("GET", "metrics")

    async def request(self, request_id: str, tenant: str | None = None) -> dict[str, Any]:
        """{"request": timeline of a recent request, or None}; tenant: only one of this tenant's."""
        return await self._call("GET", f"requests/{quote(request_id, safe='')}{_query(tenant=tenant)}")

    async def requests(self, tenant: str | None = None, limit: int = 50) -> dict[str, Any]:
        """{"requests": […]}: the newest first."""
        return await self._call("GET", f"requests{_query(tenant=tenant, limit=limit)}")

    async def usage(self, days: int = 31) -> dict[str, Any]:
        """{"days": [{day, tenant, model, requests, prompt_tokens, completion_tokens, cached_tokens}]} of UTC days."""
        return await self._call("GET", f"usage{_query(days=days)}")

    async def owner(self, response_id: str) -> dict[str, Any]:
        """{"owner": {tenant, model, key} or None}: which replica keeps a response of the Responses API."""
        return await self._call("GET", f"owner/{quote(response_id, safe='')}")

    async def leases(self, document: bytes = b"{}") -> dict[str, Any]:
        """Give a worker new shares of the limits, and return its claims; or have the parent divide the limits now."""
        return await self._call("POST", "leases", document)

    async def drain(self) -> None:
        """/readyz answers 503 from now on; requests are still served."""
        await self._call("POST", "drain")

    async def undrain(self) -> None:
        """The end of a drain; a gateway that stops stays unready."""
        await self._call("POST", "undrain")

    async def stop(self, deadline_s: float | None = None) -> None:
        """Begin the end: running requests get ``deadline_s`` (None: as configured). Returns at once."""
        body = b"" if deadline_s is None else orjson.dumps({"deadline_s": deadline_s})
        await self._call("POST", "stop", body)

    async def _call(self, method: str, name: str, body: bytes = b"") -> dict[str, Any]:
        try:
            found = await ask(
                "http://gateway/control/v1/",
                f"/{name}",
                method=method,
                api_key=self._token,
                headers=self._caller,
                body=body,
                socket_path=self._path,
                timeout_s=self._timeout_s,
                max_bytes=_MAX_ANSWER_BYTES,
            )
            answer: dict[str, Any] = orjson.loads(found.body)
        except (OSError, ValueError) as error:
            message = f"the gateway at {self._path} does not answer: {error or type(error).__name__}"
            raise ClusterError(message, hint="look whether its process runs, and at its log") from error
        if found.status != 200:
            raise ClusterError(f"the gateway refused {name}: {answer}", hint="check the control token and the table")
        return answer


def _query(**values: str | int | None) -> str:
    given = {name: value for name, value in values.items() if value is not None}
    return f"?{urlencode(given)}" if given else ""
