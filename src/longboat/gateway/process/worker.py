"""One worker process of a gateway, as its parent sees it, and the worker's tie to its parent."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from pathlib import Path

import orjson

from longboat.core.errors import ClusterError, EngineError, UserInputError
from longboat.core.policy import Policy
from longboat.core.states import EndpointTable
from longboat.gateway.admin.control_client import GatewayControl, gateway_command
from longboat.gateway.config import GatewayConfig, encode_config

__all__ = ("Worker", "follow_parent", "remove_indexes")

_START_TIMEOUT_S = 20.0
_PR_SET_PDEATHSIG = 1
_ASK_TIMEOUT_S = 1.0


def index_path(config: GatewayConfig) -> str:
    """Return the file of the index of prefixes that all workers of a gateway share, beside its control socket."""
    return f"{config.control_socket}.prefixes"


def remove_indexes(config: GatewayConfig) -> None:
    """Remove the index of this gateway, and those beside it whose gateways are gone."""
    own = Path(index_path(config))
    for path in own.parent.glob("*.prefixes"):
        if path == own or not path.with_suffix("").exists():
            path.unlink(missing_ok=True)


class Worker:
    """A worker process, which its parent starts again when it ends."""

    def __init__(self, config: GatewayConfig, index: int, port: int) -> None:
        path = f"{config.control_socket}.{index}"
        self._config = config.replaced(
            port=port,
            worker_index=index,
            parent_pid=os.getpid(),
            parent_socket=config.control_socket,
            prefix_index_path=index_path(config),
            control_socket=path,
            orphan_grace_s=None,
        )
        self.name = f"worker-{index}"
        # for what the worker must learn
        self.control = GatewayControl(path, config.control_token)
        # for questions, which a worker that hangs must not hold up
        self.asked = GatewayControl(path, config.control_token, timeout_s=_ASK_TIMEOUT_S)
        self.process: asyncio.subprocess.Process | None = None
        # held while the worker is fed, so that the newest state is sent last
        self.feeding = asyncio.Lock()
        # epoch and table that the worker took
        self.fed: tuple[str, EndpointTable] | None = None

    @property
    def pid(self) -> int | None:
        """The process id while the process runs."""
        return self.process.pid if self.process is not None and self.process.returncode is None else None

    async def start(self, policy: Policy | None = None) -> None:
        """Start the process; return when it listens. Raise EngineError after 20 s, UserInputError where it refuses.

        policy: replaces the configured one, so that a restarted worker never serves by an older one
        """
        config = self._config if policy is None else self._config.replaced(policy=policy)
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*gateway_command(), stdin=pipe, stdout=pipe)
        assert self.process.stdin is not None and self.process.stdout is not None
        if not self.process.stdin.is_closing():  # the worker has ended already, and uvloop refuses to write
            self.process.stdin.write(encode_config(config))
        self.process.stdin.close()
        try:
            line = await asyncio.wait_for(self.process.stdout.readline(), _START_TIMEOUT_S)
        except TimeoutError as error:
            self.process.kill()
            what = f"the gateway's {self.name} did not start within {_START_TIMEOUT_S:.0f} s"
            raise EngineError(what, hint="see its messages above") from error
        if not line or orjson.loads(line)["event"] != "listening":
            raise UserInputError(f"the gateway's {self.name} could not start", hint="see its message above")

    def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()


def follow_parent(parent_pid: int) -> None:
    """Make this worker end (gracefully) when its parent does. Raise ClusterError where the parent has ended already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent_pid:
        raise ClusterError("the parent of this worker has ended", hint="start the gateway again")
