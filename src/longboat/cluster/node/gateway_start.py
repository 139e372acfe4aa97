"""The start of a node's gateway process: detached, with its settings on its standard input."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from longboat.cluster.node.door_client import door_path
from longboat.cluster.node.gateway_record import GatewayRecord, RecordFile
from longboat.cluster.protocol.messages import NodeOrder
from longboat.core.errors import ClusterError
from longboat.folders import home_folder, owner_name
from longboat.processes import born_ticks

if TYPE_CHECKING:
    from longboat.gateway.config import GatewayConfig

__all__ = ("START_TIMEOUT_S", "GatewayStart")

START_TIMEOUT_S = 15.0
ORPHAN_GRACE_S = 60.0

DETACH = 'exec 3<&0; "$@" <&3 3<&- >&2 & echo $!'
"""The shell leaves the gateway behind without a parent: neither this actor's end nor Ray's clean-up takes it along.

It writes the gateway's pid, and the gateway writes to the shell's standard error.
"""


class GatewayStart:
    """One start. The gateway's record is on the disk before the gateway runs."""

    def __init__(self, folder: Path, node_id: str, record: RecordFile) -> None:
        self._folder = folder
        self._node_id = node_id
        self._record = record

    async def run(self, order: NodeOrder, redis_url: str | None, digest: str) -> GatewayRecord:
        """Start the gateway and return once it listens. digest: of what it learns at its start only

        Raises ClusterError where it does not come up, for instance because its port is taken.
        """
        from longboat.gateway.admin.control_client import gateway_command, gateway_stdin

        record = GatewayRecord(
            socket=str(self._folder / f"control-{secrets.token_hex(4)}.sock"),
            token=secrets.token_urlsafe(24),
            digest=digest,
            port=order.gateway.port,
        )
        config = gateway_stdin(self.config(order, record, redis_url))
        output = self._folder / "gateway.log"
        begin = output.stat().st_size if output.exists() else 0  # what stands before says why the last one ended
        with output.open("ab") as log, _detached(gateway_command(), log) as process:
            try:
                record = await self._handed_over(process, record, config)
            except BaseException:  # the end of the block would wait for the shell, and nothing else would run meanwhile
                process.kill()
                raise
        await self._wait_listening(record, output, begin)
        return record

    async def _handed_over(
        self, process: subprocess.Popen[bytes], record: GatewayRecord, config: bytes
    ) -> GatewayRecord:
        """Give the gateway that the shell leaves behind its settings. Return its record, which is on the disk then."""
        assert process.stdin is not None and process.stdout is not None
        pid = int(await asyncio.to_thread(process.stdout.readline) or 0)
        record = replace(record, pid=pid, born=born_ticks(pid))
        self._record.write(record)  # before it has its settings and runs: the next daemon must find it
        process.stdin.write(config)
        process.stdin.close()
        await asyncio.to_thread(process.wait, 10.0)
        return record

    def config(self, order: NodeOrder, record: GatewayRecord, redis_url: str | None) -> GatewayConfig:
        """Return the gateway's settings. Raises ClusterError where it cannot have a folder for its state."""
        import msgspec

        from longboat.core.policy import Policy
        from longboat.gateway.config import GatewayConfig

        settings = order.gateway
        return GatewayConfig(
            host=settings.host,
            port=settings.port,
            processes=settings.processes,
            control_socket=record.socket,
            control_token=record.token,
            fleet=order.fleet,
            node=self._node_id,
            orphan_grace_s=ORPHAN_GRACE_S,
            tls_certificate=settings.tls_certificate,
            tls_key=settings.tls_key,
            access_log=str(self._folder / "access.log") if settings.access_log else None,
            access_log_max_bytes=settings.access_log_max_bytes,
            access_log_keep=settings.access_log_keep,
            tracing_endpoint=settings.tracing_endpoint,
            tracing_sample_ratio=settings.tracing_sample_ratio,
            redis_url=redis_url,
            daemon_socket=str(door_path(self._folder.parent)),
            state_folder=str(self._state_folder(order.fleet)),
            policy=msgspec.json.decode(order.policy, type=Policy),
        )

    def _state_folder(self, fleet: str) -> Path:
        """Return a folder that outlives a boot, and that is this node's own where nodes share their home folder."""
        folder = home_folder() / "gateway" / f"{fleet}-{owner_name(self._folder)}"
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            hint = "set LONGBOAT_HOME to a folder of your own"
            raise ClusterError(f"{folder} cannot be created: {error.strerror}", hint=hint) from error
        return folder

    async def _wait_listening(self, record: GatewayRecord, output: Path, begin: int) -> None:
        """Wait for the gateway whose output starts at ``begin``. Raises ClusterError where it does not come up."""
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
        has_ended = False
        while not has_ended and asyncio.get_running_loop().time() < deadline:
            has_ended = not record.born or born_ticks(record.pid) != record.born  # before its last words are read
            if '"listening"' in _text_from(output, begin):
                return
            await asyncio.sleep(0.02)
        last = _text_from(output, begin).strip().splitlines()[-1:] or ["no output"]
        raise ClusterError(f"the gateway of {socket.gethostname()} did not start: {last[0]}", hint=f"see {output}")


def _text_from(output: Path, begin: int) -> str:
    with output.open("rb") as log:
        if log.seek(0, os.SEEK_END) < begin:  # it was rotated meanwhile
            begin = 0
        log.seek(begin)
        return log.read().decode(errors="replace")


def _detached(command: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the shell that leaves a gateway behind and ends at once; its standard output has the gateway's pid."""
    return subprocess.Popen(
        ["/bin/sh", "-c", DETACH, "sh", *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,
        cwd="/",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
