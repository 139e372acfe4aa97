"""The process of the stand that stands for all node daemons: each keeps a real gateway process and feeds it."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from longboat.cluster.node.gateway_process import GatewayProcess
from longboat.cluster.node.node_relay import NodeRelay
from longboat.cluster.protocol.messages import NodeOrder, NodeReport
from scale_bench.links import serve_link


class Node:
    """One node's daemon: the parts of ``NodeDaemon`` that need no Ray."""

    def __init__(self, name: str, folder: Path) -> None:
        number = int(name.rpartition("-")[2])
        self.address = f"127.0.{number // 250}.{number % 250 + 1}"
        self.gateway = GatewayProcess(folder / name, name, self.address)
        self.relay = NodeRelay(self.address)
        self._lock = asyncio.Lock()

    async def order(self, order: NodeOrder) -> NodeReport:
        async with self._lock:
            settings = dataclasses.replace(order.gateway, host=self.address)
            gateway = await self.gateway.ensure(dataclasses.replace(order, gateway=settings))
            await self.relay.follow(self.gateway.tables.table)
            relay = self.relay
            return NodeReport(gateway=gateway, relay=relay.address, relay_key=relay.key, unwell=relay.unwell)


class Nodes:
    """All nodes of the stand."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._nodes: dict[str, Node] = {}

    def _node(self, name: str) -> Node:
        if name not in self._nodes:
            self._nodes[name] = Node(name, self._folder)
        return self._nodes[name]

    async def order(self, name: str, order: NodeOrder) -> NodeReport:
        return await self._node(name).order(order)

    async def wakes(self, name: str) -> list[str]:
        return await self._node(name).gateway.wakes()

    async def states(self) -> list[dict[str, Any]]:
        """Return what each gateway says of itself."""
        return list(await asyncio.gather(*(self._state(node) for node in self._nodes.values())))

    async def _state(self, node: Node) -> dict[str, Any]:
        record = node.gateway._record.read()
        return (await node.gateway._state(record) if record else None) or {}

    async def stop(self) -> None:
        await asyncio.gather(*(node.gateway.stop() for node in self._nodes.values()))


async def main() -> None:
    """Serve until standard input ends, then stop the gateways."""
    own, folder = sys.argv[1:3]
    nodes = Nodes(Path(folder))
    functions = {"order": nodes.order, "wakes": nodes.wakes, "states": nodes.states, "stop": nodes.stop}
    server = await serve_link(own, functions)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await nodes.stop()
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
