"""The client of a gateway's control socket, for the programs that start and steer gateways. Imports nothing heavy."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from longboat.core.errors import ClusterError
from longboat.core.policy import Policy
from longboat.core.states import EndpointTable
from longboat.core.table_changes import TableUpdate
from longboat.gateway.config import GatewayConfig, encode_config
from longboat.gateway.http.message import ask
from longboat.gateway.upstreams.table_document import encode_update

if TYPE_CHECKING:
    from longboat.gateway.admin.node_query import NodeQuery

__all__ = ("GatewayControl", "encode_policy", "gateway_command", "gateway_stdin")

_MAX_ANSWER_BYTES = 256 * 1024 * 1024


def gateway_command() -> list[str]:
    """Return the command line that starts a gateway. Its configuration, a secret, goes to :func:`gateway_stdin`."""
    return [sys.executable, "-P", "-m", "longboat.gateway"]


def gateway_stdin(config: GatewayConfig) -> bytes:
    """Return the bytes to write to the new gateway's stdin, which is then closed."""
    return encode_config(config)


def encode_policy(policy: Policy) -> bytes:
    """Write the document that the control socket takes. Equal policies give equal bytes. It holds secrets."""
    return msgspec.json.encode(policy, order="deterministic")


class GatewayControl:
    """A client of one gateway. Each call has its own connection, so a gateway may be replaced between two calls.

    Every method raises ClusterError where the gateway is gone, does not reply in ``timeout_s``, or refuses.
    """

    def __init__(self, socket_path: str, token: str, *, timeout_s: float = 10.0, from_worker: bool = False) -> None:
        """from_worker: the caller is a worker of the gateway, so its calls do not prove that the owner lives"""
        self._path = socket_path
        self._token = token
        self._timeout_s = timeout_s
        self._caller = {"x-longboat-caller": "worker"} if from_worker else {}

    async def put_table(self, epoch: str, table: EndpointTable) -> bool:
        """Send the endpoint table. Return False where the gateway has a newer version of this epoch."""
        return await self.put_update(TableUpdate(epoch=epoch, number=0, table=table))

    async def put_update(self, update: TableUpdate) -> bool:
        """Send a table or its change. Return False where the gateway needs the whole table, or has a newer one."""
        answer = await self._call("PUT", "table", encode_update(update))
        return bool(answer["accepted"])

    async def put_policy(self, policy: Policy | bytes) -> bool:
        """Replace the policy. bytes: a policy as JSON; the state then holds its digest."""
        document = policy if isinstance(policy, bytes) else encode_policy(policy)
        return bool((await self._call("PUT", "policy", document))["accepted"])

    async def put_view(self, view: bytes) -> None:
        """Replace the controller's view of the fleet, a JSON document that the console shows."""
        await self._call("PUT", "view", view)

    async def state(self) -> dict[str, Any]:
        """Return pid, version, epoch, host, port, in_flight, requests_total, fleet, uptime_s, processes, and more."""
        return await self._call("GET", "state")

    async def ask(self, query: NodeQuery) -> dict[str, Any]:
        """Reply for all processes of the node; ``missing`` names those that did not reply in time."""
        return await self._call("POST", "query", msgspec.json.encode(query))

    async def wakes(self) -> list[str]:
        """Return the sleeping models that requests asked for, as soon as there is one; none after five seconds."""
        return [str(model) for model in (await self._call("POST", "wakes"))["models"]]

    async def leases(self, document: bytes = b"{}") -> dict[str, Any]:
        """Give a worker new shares of the limits, and return its claims; or have the parent divide the limits now."""
        return await self._call("POST", "leases", document)

    async def drain(self) -> None:
        """Have ``/readyz`` return 503; requests are still served."""
        await self._call("POST", "drain")

    async def undrain(self) -> None:
        """End a drain. A gateway that stops stays unready."""
        await self._call("POST", "undrain")

    async def stop(self, deadline_s: float | None = None) -> None:
        """Begin to stop: running requests get ``deadline_s`` (None: as configured). Return at once."""
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
            raise ClusterError(message, hint="check that its process runs, and read its log") from error
        if found.status != 200:
            raise ClusterError(f"the gateway refused {name}: {answer}", hint="check the control token and the table")
        return answer
