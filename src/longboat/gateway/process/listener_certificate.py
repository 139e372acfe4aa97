"""The certificate of a gateway's listener, looked at once a second and replaced without a restart."""

from __future__ import annotations

import asyncio
from typing import Any

from longboat.clock import WALL
from longboat.core.clock import Clock
from longboat.gateway.config import GatewayConfig
from longboat.gateway.http.tls import ServerTls

__all__ = ("ListenerCertificate",)

_CHECK_S = 1.0
_GOODBYE_S = 1.0  # for a client to reply to the end of TLS


class ListenerCertificate:
    """The pair of files that the configuration names, or none. Raises UserInputError where they cannot be used."""

    def __init__(self, config: GatewayConfig, clock: Clock = WALL) -> None:
        self._tls: ServerTls | None = None
        if config.tls_certificate is not None and config.tls_key is not None:
            self._tls = ServerTls(config.tls_certificate, config.tls_key, loud=not config.worker_index)
        self._handshake_s = config.limits.handshake_timeout_s
        self._checked_s = clock.monotonic_s()
        self._reader: asyncio.Task[Any] | None = None

    def listener_options(self) -> dict[str, Any]:
        """Return the options of asyncio's ``create_server``."""
        if self._tls is None:
            return {}
        return {
            "ssl": self._tls.context,
            "ssl_handshake_timeout": self._handshake_s,
            "ssl_shutdown_timeout": _GOODBYE_S,
        }

    def refresh(self, now_s: float) -> None:
        """Read changed files again, in a thread, since their disk may be slow. Call it often: it looks when due."""
        is_reading = self._reader is not None and not self._reader.done()
        if self._tls is not None and not is_reading and now_s - self._checked_s >= _CHECK_S:
            self._checked_s = now_s
            self._reader = asyncio.get_running_loop().create_task(asyncio.to_thread(self._tls.refresh))
