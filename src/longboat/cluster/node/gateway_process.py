"""A node's gateway process: started detached, adopted when it already runs, fed with the endpoint table."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import signal
import socket
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from longboat.cluster.node.gateway_record import GatewayRecord, RecordFile
from longboat.cluster.node.gateway_start import START_TIMEOUT_S, GatewayStart
from longboat.cluster.protocol.messages import GatewayReport, GatewaySettings, NodeOrder
from longboat.core.errors import ClusterError, LongboatError
from longboat.core.table_changes import TableKeeper
from longboat.processes import born_ticks
from longboat.spec.secrets import read_secret

__all__ = ("GatewayProcess",)

CONTROL_TIMEOUT_S = 3.0
STOP_S = 10.0
HANG_S = 10.0
"""A gateway that runs and answers nothing for this long hangs. A busy one answers now and then."""


class GatewayProcess:
    """The gateway of one node. The record file lets the next daemon find and adopt it."""

    def __init__(self, folder: Path, node_id: str, address: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._node_id = node_id
        self._address = address
        self._record = RecordFile(folder)
        self._silent_since_s: float | None = None
        self.tables = TableKeeper()  # this node's table, as ordered

    async def ensure(self, order: NodeOrder) -> GatewayReport:
        """See to it that a gateway with the ordered settings runs and has the ordered policy and table.

        Raises LongboatError when it cannot be started, for instance because its port is taken.
        """
        if not order.table_is_old:
            self.tables.take(order.update)
        record = self._record.read()
        state = await self._state(record) if record else None
        if record and state is None and not self._is_gone(record):
            hint = f"one that answers nothing for {HANG_S:.0f} s is ended, and another started"
            raise ClusterError(f"the gateway of {socket.gethostname()} is busy and does not answer", hint=hint)
        secret, trouble = _redis_url(order.gateway)
        if trouble and state is None:
            raise trouble
        if record and state and not trouble and record.digest != _digest(order, secret):
            await self._stop(record)
            state = None
        runs_already = state is not None
        if state is None:
            record = await asyncio.wait_for(self._start(order, secret), START_TIMEOUT_S + 5.0)
            state = await self._state(record) or {}
        assert record is not None
        await self._feed(record, state, order, with_table=not (order.table_is_old and runs_already))
        record = await self._steer(record, order)
        state = await self._state(record) or {}
        self._note_pid(record, state)
        return self._report(order, state, str(trouble or ""))

    def _is_gone(self, record: GatewayRecord) -> bool:
        """Return whether a gateway that does not answer has ended. One that hangs is ended here.

        Another one beside it would find its port taken, and its record lost.
        """
        pid = record.pid
        if pid and born_ticks(pid) != record.born:
            return True
        now_s = time.monotonic()
        self._silent_since_s = self._silent_since_s or now_s
        if now_s - self._silent_since_s < HANG_S:
            return False
        self._silent_since_s = None
        _kill(record)
        return True

    def _note_pid(self, record: GatewayRecord, state: dict[str, Any]) -> None:
        if not state:
            return
        self._silent_since_s = None
        pid = int(state["pid"])
        if record.pid != pid:
            self._record.write(replace(record, pid=pid, born=born_ticks(pid)))

    async def ask(self, query: bytes) -> dict[str, Any]:
        """Return the reply of this node's gateway to a query (``gateway.admin.node_query``), as JSON.

        Raises ClusterError where there is no gateway, or it does not reply.
        """
        from longboat.gateway.admin.node_query import decode_query

        if (record := self._record.read()) is None:
            raise ClusterError(f"node {socket.gethostname()} has no gateway", hint="longboat status")
        reply: dict[str, Any] = await self._control(record).ask(decode_query(query))
        return reply

    async def wakes(self) -> list[str]:
        """Return the sleeping models that requests asked for, as soon as there is one; none after some seconds.

        Raises ClusterError where there is no gateway, or it does not reply.
        """
        if (record := self._record.read()) is None:
            raise ClusterError(f"node {socket.gethostname()} has no gateway", hint="longboat status")
        models: list[str] = await self._control(record).wakes()
        return models

    async def _feed(self, record: GatewayRecord, state: dict[str, Any], order: NodeOrder, *, with_table: bool) -> None:
        """Send the policy before the table, so that no model is served by the rules of an older policy."""
        if state.get("policy_digest") != order.policy_digest:
            await self._control(record).put_policy(order.policy)
        if with_table:
            await self._feed_table(record, state, order)
        if order.view and not order.table_is_old:
            with contextlib.suppress(ClusterError):  # what people look at must not hold up what serves
                await self._control(record).put_view(order.view)

    async def _steer(self, record: GatewayRecord, order: NodeOrder) -> GatewayRecord:
        """Begin or end the drain where the order changed: an operator may have steered this gateway in between."""
        if record.drained == order.drained:
            return record
        control = self._control(record)
        await (control.drain() if order.drained else control.undrain())
        record = replace(record, drained=order.drained)
        self._record.write(record)
        return record

    async def _feed_table(self, record: GatewayRecord, state: dict[str, Any], order: NodeOrder) -> None:
        """Send what changed, or the whole table to a gateway that has an older one or none."""
        whole, step = self.tables.whole(), order.update
        has = state.get("number", 0) if state.get("epoch") == self.tables.epoch else 0
        if whole is None or (has and has == whole.number):
            return
        if has and (step.base, step.number) == (has, whole.number) and await self._control(record).put_update(step):
            return
        await self._control(record).put_update(whole)

    async def stop(self) -> None:
        """End the gateway, if there is one."""
        if record := self._record.read():
            await self._stop(record)

    async def _stop(self, record: GatewayRecord) -> None:
        try:
            await asyncio.wait_for(self._control(record).stop(), STOP_S)
        except (OSError, TimeoutError, ClusterError):  # it is gone, or hangs, and no daemon finds it without its record
            _kill(record)
        self._record.delete()

    async def _state(self, record: GatewayRecord) -> dict[str, Any] | None:
        try:
            state: dict[str, Any] = await asyncio.wait_for(self._control(record).state(), CONTROL_TIMEOUT_S)
            return state
        except (OSError, TimeoutError, ClusterError):
            return None

    def _control(self, record: GatewayRecord) -> Any:
        from longboat.gateway.admin.control_client import GatewayControl

        return GatewayControl(record.socket, record.token)

    async def _start(self, order: NodeOrder, redis_url: str | None) -> GatewayRecord:
        begun = GatewayStart(self._folder, self._node_id, self._record)
        return await begun.run(order, redis_url, _digest(order, redis_url))

    def _report(self, order: NodeOrder, state: dict[str, Any], trouble: str) -> GatewayReport:
        return GatewayReport(
            node_id=self._node_id,
            address=self._address,
            hostname=socket.gethostname(),
            url=_url(order.gateway, self._address),
            pid=state.get("pid"),
            table_version=state.get("version", 0),
            table_number=self.tables.known_in(order.epoch),
            epoch=state.get("epoch", ""),
            in_flight=state.get("in_flight", 0),
            requests_total=state.get("requests_total", 0),
            policy_digest=state.get("policy_digest", ""),
            demands=state.get("demands", {}),
            tenant_demands=state.get("tenant_demands", {}),
            draining=bool(state.get("draining")),
            watched=bool(state.get("watched")),
            model_counts=state.get("model_counts", {}),
            problem=trouble if state else "its control socket does not answer",
        )


def _kill(record: GatewayRecord) -> None:
    """End a gateway by force, where its process is still the one of the record."""
    if record.pid and born_ticks(record.pid) == record.born:
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.pid, signal.SIGKILL)


def _redis_url(settings: GatewaySettings) -> tuple[str | None, LongboatError | None]:
    """Return the URL with its secret, and why it cannot be had."""
    if settings.redis_url_file is None and settings.redis_url_env is None:
        return settings.redis_url, None
    try:
        where = "gateway.redis"
        return read_secret(file=settings.redis_url_file, variable=settings.redis_url_env, where=where), None
    except LongboatError as error:
        return None, error


def _digest(order: NodeOrder, redis_url: str | None) -> str:
    """Digest everything that the gateway learns at its start only."""
    text = json.dumps({**asdict(order.gateway), "fleet": order.fleet, "redis": redis_url}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _url(gateway: GatewaySettings, address: str) -> str:
    host = address if gateway.host in ("0.0.0.0", "::") else gateway.host
    scheme = "https" if gateway.tls_certificate else "http"
    return f"{scheme}://[{host}]:{gateway.port}" if ":" in host else f"{scheme}://{host}:{gateway.port}"
