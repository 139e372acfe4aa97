"""The controller's process of the stand: the real ``FleetController``, with the stand's nodes instead of Ray's."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scale_bench.links import Link, serve_link
from scale_bench.real_controller import real_controller


class _Method:
    def __init__(self, link: Link, name: str, node: str) -> None:
        self._call = link, name, node

    def remote(self, *args: Any) -> Any:
        link, name, node = self._call
        return link.call(name, node, *args)


class _Daemon:
    """The handle of one node's daemon, as Ray would give it."""

    def __init__(self, link: Link, node: str) -> None:
        self.order = _Method(link, "order", node)
        self.wakes = _Method(link, "wakes", node)


async def main() -> None:
    """Serve until standard input ends."""
    own, nodes_path, num_nodes, num_models, port = sys.argv[1:6]
    link = Link(nodes_path)
    names = [f"node-{number:04}" for number in range(int(num_nodes))]
    values = {
        "fleet": "scale",
        "models": [f"model-{number}" for number in range(int(num_models))],
        "gateway": {"host": "127.0.0.1", "port": int(port), "processes": 1, "access_log": False},
        "policy": {},
    }
    controller = await real_controller(lambda node: _Daemon(link, node), names, values)

    async def version() -> tuple[int, int, int]:
        report = await controller.report()
        have = [gateway.table_version for gateway in report.gateways]
        ready = sum(state.phase.value == "ready" for state in report.replicas)
        return report.table_version, min(have, default=0), ready

    server = await serve_link(own, {"announce": controller.announce, "version": version})
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()
    sys.stdout.flush()
    os._exit(0)  # its loops have no end


if __name__ == "__main__":
    asyncio.run(main())
