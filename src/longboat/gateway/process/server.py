"""One gateway process: its listener, its sweep, its drain and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import Any, cast

from longboat.clock import WALL, until_tick_s
from longboat.core.clock import Clock
from longboat.core.errors import UserInputError
from longboat.gateway.admin.control_socket import ControlServer
from longboat.gateway.admin.node_view import make_node
from longboat.gateway.calls.state import GatewayState
from longboat.gateway.config import SWEEP_S, GatewayConfig
from longboat.gateway.process.listener_certificate import ListenerCertificate
from longboat.gateway.process.open_files import OpenFilesWatch
from longboat.gateway.process.services import Services
from longboat.gateway.process.steering import Steering
from longboat.gateway.requests.connection import ClientConnection
from longboat.telemetry import Guard, logger

__all__ = ("Gateway", "serve_until_stopped")

log = logger("gateway")

_BACKLOG = 4096
_CUT_S = 0.5
_TABLE_WAIT_S = 2.0
_LAST_ACCEPT_S = 0.05
_SOCKET = (  # the listener's options, which Linux copies to every connection that it accepts
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
)


class Gateway:
    """The life of one process that serves clients. ``steering`` answers its control socket."""

    def __init__(self, config: GatewayConfig, clock: Clock = WALL) -> None:
        self.state = GatewayState(config, clock)
        self._clock = clock
        self.steering = Steering(self.state, clock, stop=self.stop)
        self.state.node = make_node(self.state, self.steering)
        self._services = Services(self.state)
        self.stopped = asyncio.Event()
        self._certificate = ListenerCertificate(config, clock)
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._opener: asyncio.Task[None] | None = None
        self._stopper: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that the gateway listens on."""
        return self.steering.port

    async def start(self) -> None:
        """Listen. Raise UserInputError where the address cannot be used."""
        config = self.state.config
        loop = asyncio.get_running_loop()
        await self._services.start()
        try:
            self._server = await loop.create_server(
                self._new_connection,
                config.host,
                config.port,
                backlog=_BACKLOG,
                reuse_port=config.worker_index is not None,
                start_serving=False,
                **self._certificate.listener_options(),
            )
            for listener in self._server.sockets:
                for option in _SOCKET:
                    listener.setsockopt(*option)
                with socket.socket(fileno=os.dup(listener.fileno())) as queue:
                    queue.listen(_BACKLOG)
        except OSError as error:
            raise listen_error(config.host, config.port, error) from error
        self.steering.port = self._server.sockets[0].getsockname()[1]
        self._sweeper = loop.create_task(self._sweep_forever())
        self._opener = loop.create_task(self._accept(self._server))

    async def _accept(self, server: asyncio.Server) -> None:
        """Accept connections once there is a table, or after two seconds. Until then, the kernel queues them."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _TABLE_WAIT_S
        while not (self.state.table.known or self.state.stopping) and loop.time() < end_s:  # noqa: ASYNC110 it comes soon
            await asyncio.sleep(0.01)
        try:
            await server.start_serving()
        except OSError as error:
            loop.call_exception_handler({"message": "the gateway cannot accept connections", "exception": error})
            self.stop()

    def _new_connection(self) -> asyncio.Protocol:
        # it has a protocol's methods, and is compiled without the base class
        return cast("asyncio.Protocol", ClientConnection(self.state))

    def stop(self, deadline_s: float | None = None) -> None:
        """Accept nothing new, let running requests finish until the deadline, then end."""
        if self._stopper is None:
            self.state.draining = self.state.stopping = True
            limit_s = self.state.limits.stop_deadline_s if deadline_s is None else deadline_s
            self._stopper = asyncio.get_running_loop().create_task(self._stop(limit_s))

    async def _stop(self, deadline_s: float) -> None:
        state = self.state
        if self._opener is not None and not self._opener.done():  # clients that waited for the table get an answer
            await self._opener
            await asyncio.sleep(_LAST_ACCEPT_S)
        if self._server is not None:
            self._server.close()
        for connection in tuple(state.connections):
            connection.stop_when_idle()
        end_s = asyncio.get_running_loop().time() + deadline_s
        while state.connections and asyncio.get_running_loop().time() < end_s:  # noqa: ASYNC110 an event would cost every request
            await asyncio.sleep(0.02)
        await self._cut_off()
        state.accounting.flush()
        if state.accounting.access_log is not None:
            state.accounting.access_log.close()
            state.accounting.access_log = None
        await self._services.stop()
        self.stopped.set()

    async def _cut_off(self) -> None:
        """Cut the remaining clients off; what their responses used is recorded first."""
        for connection in tuple(self.state.connections):
            connection.cut()
        end_s = asyncio.get_running_loop().time() + _CUT_S
        while self.state.connections and asyncio.get_running_loop().time() < end_s:  # noqa: ASYNC110 the loop tells soon
            await asyncio.sleep(0)

    async def _sweep_forever(self) -> None:
        guard, files = Guard(log, "the gateway's sweep"), OpenFilesWatch()
        while True:
            await asyncio.sleep(until_tick_s(SWEEP_S, asyncio.get_running_loop().time()))
            with guard:
                files.look(self._clock.monotonic_s())
                self._sweep(self._clock.monotonic_s())

    def _sweep(self, now_s: float) -> None:
        state = self.state
        for connection in tuple(state.connections):
            try:
                connection.sweep(now_s)
            except Exception as error:  # a defect of one request must not end the sweep of the others
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "the gateway failed on a request", "exception": error, "protocol": connection}
                )
                connection.cut()
        for pool in state.table.pools():
            pool.sweep(now_s)
        for upstream in state.table.upstreams():
            upstream.connections.drop(now_s - upstream.idle_s)
        if state.accounting.access_log is not None:
            state.accounting.access_log.flush()
        self._certificate.refresh(now_s)
        state.table.read_keys_again(now_s)
        grace_s = state.config.orphan_grace_s
        if grace_s is not None and now_s - state.last_contact_s > grace_s:
            self.stop()


def listen_error(host: str, port: int, error: OSError) -> UserInputError:
    """Explain why the address cannot be used."""
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
    return UserInputError(
        f"cannot listen on {host}:{port}: {reason}", hint="choose another port or host, or stop what listens there"
    )


async def serve_until_stopped(config: GatewayConfig, announce: Any) -> None:
    """Run a gateway in this process until it is stopped. Call ``announce(port)`` when it listens.

    Raise UserInputError where the port or the control socket cannot be used.
    """
    gateway = Gateway(config)
    await gateway.start()
    control = ControlServer(gateway.steering, config.control_socket, config.control_token)
    await control.start()
    stop_on_signals(gateway.stop)
    announce(gateway.port)
    await gateway.stopped.wait()
    await control.close()


def stop_on_signals(stop: Any) -> None:
    """Stop gracefully at SIGTERM or SIGINT; a second signal ends the process now."""
    loop = asyncio.get_running_loop()

    def first() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, os._exit, 130)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, first)
