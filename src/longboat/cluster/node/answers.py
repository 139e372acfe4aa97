"""What the node daemon answers to commands on its machine: the fleet's state, and what other nodes' daemons know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from longboat.cluster.node.head_question import HEAD_HINT, HeadAwayError
from longboat.cluster.protocol.messages import NodeOrder
from longboat.cluster.protocol.names import CONTROLLER_APP, NAMESPACE, daemon_name
from longboat.core.errors import ClusterError

__all__ = ("Answers",)

FORWARDED = ("ask_gateway", "list_logs", "list_weights", "read_log")
"""What any daemon may be asked through this one."""

_CONTROLLER_S, _NODE_S, _HEAD_S = 15.0, 15.0, 15.0  # a command waits 20 s
_CHANGE_GRACE_S = 45.0  # beyond the client's time, which is in the order; the gateway waits longer
_END_NODES_S = 35.0  # a node that does not answer takes the controller 15 s; the command waits 40 s
_Answer = TypeVar("_Answer")
_THREADS = ThreadPoolExecutor(8, thread_name_prefix="answer")
"""Threads of questions to Ray's head, which may last long while it is away. The daemon needs its own for its node."""


class Answers:
    """The answers to commands. What it needs of Serve is loaded when a command asks first."""

    def __init__(self, node_id: str, own: Mapping[str, Callable[..., Awaitable[Any]]]) -> None:
        """own: the methods of ``FORWARDED`` on this node"""
        self._node_id = node_id
        self._own = own
        self._controller: asyncio.Future[Any] | None = None  # its handle; Ray's head may be away while it is made
        self._dashboard = ""
        self._heard_s = time.monotonic()

    def take(self, order: NodeOrder) -> None:
        """Take over what the controller says of the cluster."""
        self._dashboard, self._heard_s = order.dashboard, time.monotonic()

    @property
    def all(self) -> dict[str, Callable[..., Awaitable[Any]]]:
        """Return what can be asked → who answers."""
        return {
            "cluster": self.cluster,
            "controller": self.controller,
            "nodes": self.nodes,
            "gateways": self.gateways,
            "change_fleet": self.change_fleet,
            "node": self.node,
            "mark": self.mark,
        }

    async def cluster(self) -> dict[str, str | float]:
        """Return where Serve is steered, where Ray's GCS is, and how long ago the controller gave an order."""
        import ray

        gcs_address = str(ray.get_runtime_context().gcs_address)
        return {"dashboard": self._dashboard, "gcs_address": gcs_address, "heard_s": time.monotonic() - self._heard_s}

    async def controller(self, method: str) -> Any:
        """Call the controller. Raises ClusterError where it does not answer."""
        if method not in ("report", "scaling_history", "end_nodes", "end_unplaced"):
            raise ClusterError(f"the controller is not asked for {method!r} here")
        return await self._ask_controller(method, _END_NODES_S if method == "end_nodes" else _CONTROLLER_S)

    async def change_fleet(self, order: dict[str, Any]) -> Any:
        """Have the controller carry out a change; status 504 says that it did not confirm the change in time.

        Raises ClusterError where it does not answer.
        """
        try:
            return await self._ask_controller("change_fleet", order["timeout_s"] + _CHANGE_GRACE_S, order)
        except ClusterError as error:
            if not isinstance(error.__cause__, TimeoutError):
                raise
            return {"status": 504, "error": "the fleet's controller did not confirm the change in time", "hint": ""}

    async def _ask_controller(self, method: str, limit_s: float, *args: object) -> Any:
        if self._controller is None:
            self._controller = asyncio.ensure_future(_in_thread(_controller))
        handle = self._controller
        try:
            async with asyncio.timeout(limit_s):
                return await getattr(await asyncio.shield(handle), method).remote(*args)
        except Exception as error:
            if handle.done() and self._controller is handle:
                self._controller = None
            if isinstance(error, HeadAwayError):
                raise
            raise ClusterError(f"the fleet's controller does not answer ({type(error).__name__})") from error

    async def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes as Ray lists them."""
        import ray

        return [dict(node) for node in await _in_thread(ray.nodes)]

    async def mark(self, verb: str, name: str, value: str = "") -> bool | str | None:
        """Add, put, get or remove a mark of the turn to write. Raises ClusterError where the head is away."""
        found: bool | str | None = await _in_thread(_mark, verb, name, value)
        return found

    async def gateways(self) -> list[dict[str, str]]:
        """Return each node's gateway, for Prometheus. Raises ClusterError where the controller does not answer."""
        report = await self._ask_controller("report", _CONTROLLER_S)
        return [{"node_id": one.node_id, "hostname": one.hostname, "url": one.url} for one in report.gateways]

    async def node(self, node_id: str, method: str, *args: Any) -> Any:
        """Ask a node's daemon. Raises ClusterError where it does not answer."""
        if method not in FORWARDED:
            raise ClusterError(f"nodes are not asked for {method!r} here")
        if node_id == self._node_id:
            return await self._own[method](*args)
        daemon = await _in_thread(_daemon, node_id)
        return await asyncio.wait_for(getattr(daemon, method).remote(*args), _NODE_S)


async def _in_thread(question: Callable[..., _Answer], *args: object) -> _Answer:
    """Ask Ray's head. Raises HeadAwayError where it does not answer in time: the thread waits on."""
    answer = asyncio.get_running_loop().run_in_executor(_THREADS, question, *args)
    done, _ = await asyncio.wait({answer}, timeout=_HEAD_S)
    if not done:
        answer.cancel()
        raise HeadAwayError(f"the cluster's head did not answer within {_HEAD_S:.0f} s", hint=HEAD_HINT)
    return answer.result()


def _mark(verb: str, name: str, value: str) -> bool | str | None:
    from longboat.cluster.node.write_turn import ray_marks

    marks = ray_marks()
    if marks is None:
        raise ClusterError("this node's daemon has no connection to the cluster")
    match verb:
        case "add":
            return marks.add(name, value.encode())
        case "put":
            marks.put(name, value.encode())
        case "remove":
            marks.remove(name)
        case _:
            return None if (found := marks.get(name)) is None else found.decode()
    return None


def _controller() -> Any:
    from ray import serve

    return serve.get_app_handle(CONTROLLER_APP)


def _daemon(node_id: str) -> Any:
    import ray

    try:
        return ray.get_actor(daemon_name(node_id), namespace=NAMESPACE)
    except ValueError as error:
        raise ClusterError(f"node {node_id[:8]} has no daemon") from error
