"""What one gateway process keeps for the console: sessions, the documents of the last second, the fleet's view."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from longboat.core.errors import UserInputError
from longboat.gateway.config import GatewayConfig
from longboat.gateway.console.failures import Failures
from longboat.gateway.console.plan_worker import PlanWorkers
from longboat.gateway.console.sections import Sections
from longboat.gateway.console.sessions import Sessions, cookie_of

__all__ = ("Console",)

_WATCHED_S = 6.0
"""A page asks every two seconds; the controller sends its view while one asked lately."""

_STALE_S = 10


class Console:
    """Made with the gateway; holds nothing until a page is opened."""

    def __init__(self, config: GatewayConfig) -> None:
        socket = config.parent_socket or config.control_socket
        self.sessions = Sessions(config.control_token, socket)
        self.cookie = cookie_of(config.port)  # its name
        secret = config.control_token.encode()
        self.failures = Failures(_beside(socket, "console-failures"), secret)
        # of sign-ins through the provider: links can cause them, and keys go on
        self.provider_failures = Failures(_beside(socket, "console-provider-failures"), secret)
        self.sections = Sections()
        self.plans = PlanWorkers(config.run_folder)
        self.is_secure = config.tls_certificate is not None
        # the fleet as the controller sees it (``cluster.protocol.console_view``); None: it never sent one
        self.view: Mapping[str, Any] | None = None
        self._viewed_s = 0.0
        self._asked_s = -_WATCHED_S

    def offer_view(self, document: bytes, now_s: float) -> None:
        """Take the controller's view. now_s: monotonic. Raise UserInputError where it is not a JSON object."""
        try:
            view = orjson.loads(document)
        except orjson.JSONDecodeError as error:
            raise UserInputError(f"the view of the fleet is not JSON: {error}", hint="send one JSON object") from error
        self.view = view if isinstance(view, dict) else None
        self._viewed_s = now_s

    def view_age_s(self, now_s: float) -> int:
        """Return the age of a view that should have been replaced long ago; 0: it is fresh, or there is none."""
        age_s = int(now_s - self._viewed_s)
        return age_s if self.view is not None and age_s > _STALE_S else 0

    def note_viewer(self, now_s: float) -> None:
        """Note that a page shows the fleet. now_s: monotonic"""
        self._asked_s = now_s

    def is_watched(self, now_s: float) -> bool:
        """Return whether the controller should send its view of the fleet."""
        return now_s - self._asked_s < _WATCHED_S


def _beside(socket: str, name: str) -> Path | None:
    return Path(socket).with_name(name) if socket else None
