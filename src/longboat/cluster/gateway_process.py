"""A node's gateway process: started detached, adopted when it already runs, fed with the endpoint table."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import socket
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from longboat.cluster.messages import GatewayReport, GatewaySettings, NodeOrder
from longboat.core.errors import ClusterError

__all__ = ("GatewayProcess",)

START_TIMEOUT_S = 15.0
CONTROL_TIMEOUT_S = 3.0
ORPHAN_GRACE_S = 60.0

DETACH = 'exec 3<&0; "$@" <&3 3<&- & '
"""The shell leaves the gateway behind without a parent: neither this actor's end nor Ray's clean-up takes it along."""


class GatewayProcess:
    """The keeper's hold on the gateway. The record file lets the next keeper find and adopt it."""

    def __init__(self, folder: Path, node_id: str, address: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._node_id = node_id
        self._address = address

    async def ensure(self, order: NodeOrder) -> GatewayReport:
        """A gateway with the ordered settings runs and has the ordered table.

        Raises ClusterError when it cannot be started, for instance because its port is taken.
        """
        digest = _digest(order)
        record = self._record()
        state = await self._state(record) if record else None
        if record and state and record["digest"] != digest:
            await self._stop(record)
            state = None
        if state is None:
            record = await asyncio.wait_for(self._start(order, digest), START_TIMEOUT_S + 5.0)
        assert record is not None
        if not (order.table_is_partial and state):
            await self._control(record).put_table(order.epoch, order.table)
        state = await self._state(record) or {}
        return self._report(order, state)

    async def stop(self) -> None:
        """End the gateway, if there is one."""
        if record := self._record():
            await self._stop(record)

    async def _stop(self, record: dict[str, Any]) -> None:
        with contextlib.suppress(OSError, TimeoutError, ClusterError):
            await asyncio.wait_for(self._control(record).stop(), 10.0)
        self._record_path.unlink(missing_ok=True)

    async def _state(self, record: dict[str, Any]) -> dict[str, Any] | None:
        try:
            state: dict[str, Any] = await asyncio.wait_for(self._control(record).state(), CONTROL_TIMEOUT_S)
            return state
        except (OSError, TimeoutError, ClusterError):
            return None

    def _control(self, record: dict[str, Any]) -> Any:
        from longboat.gateway.control_client import GatewayControl

        return GatewayControl(record["socket"], record["token"])

    async def _start(self, order: NodeOrder, digest: str) -> dict[str, Any]:
        from longboat.gateway.config import GatewayConfig
        from longboat.gateway.control_client import gateway_command, gateway_stdin

        record: dict[str, Any] = {
            "socket": str(self._folder / f"control-{secrets.token_hex(4)}.sock"),
            "token": secrets.token_urlsafe(24),
            "digest": digest,
            "port": order.gateway.port,
        }
        config = GatewayConfig(
            host=order.gateway.host,
            port=order.gateway.port,
            processes=order.gateway.processes,
            control_socket=record["socket"],
            control_token=record["token"],
            fleet=order.fleet,
            node=self._node_id,
            orphan_grace_s=ORPHAN_GRACE_S,
            access_log=str(self._folder / "access.log"),
        )
        self._save(record)  # before it runs: whoever comes after us must find it
        output = self._folder / "gateway.log"
        with output.open("wb") as log:
            process = subprocess.Popen(  # noqa: ASYNC220 (a shell that ends at once)
                ["/bin/sh", "-c", DETACH, "sh", *gateway_command()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd="/",
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
            assert process.stdin is not None
            process.stdin.write(gateway_stdin(config))
            process.stdin.close()
            await asyncio.to_thread(process.wait, 10.0)
        await self._wait_listening(output)
        return record

    async def _wait_listening(self, output: Path) -> None:
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
        while asyncio.get_running_loop().time() < deadline:
            text = output.read_text(errors="replace")
            if '"listening"' in text:
                return
            if "error" in text.lower() or "in use" in text:
                break
            await asyncio.sleep(0.02)
        last = output.read_text(errors="replace").strip().splitlines()[-1:] or ["no output"]
        raise ClusterError(f"the gateway of {socket.gethostname()} did not start: {last[0]}", hint=f"see {output}")

    @property
    def _record_path(self) -> Path:
        return self._folder / "gateway.json"

    def _record(self) -> dict[str, Any] | None:
        try:
            record: dict[str, Any] = json.loads(self._record_path.read_text())
            return record
        except (FileNotFoundError, ValueError):
            return None

    def _save(self, record: dict[str, Any]) -> None:
        """By rename: a reader finds the whole record or none."""
        part = self._record_path.with_suffix(".part")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(record, file)
        part.rename(self._record_path)

    def _report(self, order: NodeOrder, state: dict[str, Any]) -> GatewayReport:
        return GatewayReport(
            node_id=self._node_id,
            address=self._address,
            hostname=socket.gethostname(),
            url=_url(order.gateway, self._address),
            pid=state.get("pid"),
            table_version=state.get("version", 0),
            epoch=state.get("epoch", ""),
            in_flight=state.get("in_flight", 0),
            requests_total=state.get("requests_total", 0),
            problem="" if state else "its control socket does not answer",
        )


def _digest(order: NodeOrder) -> str:
    text = json.dumps({**asdict(order.gateway), "fleet": order.fleet}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _url(gateway: GatewaySettings, address: str) -> str:
    host = address if gateway.host in ("0.0.0.0", "::") else gateway.host
    return f"http://[{host}]:{gateway.port}" if ":" in host else f"http://{host}:{gateway.port}"
