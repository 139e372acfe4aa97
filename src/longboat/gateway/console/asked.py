"""Requests for the console and its answers, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from longboat.core.clock import Clock
from longboat.core.policy import TenantPolicy
from longboat.gateway.admin.admin_call import AdminState
from longboat.gateway.console.console import Console

__all__ = ("Asked", "ChatAs", "ConsoleAnswer", "ConsoleState")


class ConsoleState(AdminState, Protocol):
    """The parts of the gateway that the console needs: those of the admin API, and its own."""

    clock: Clock
    console: Console


class Asked(NamedTuple):
    """A request for the console."""

    method: str
    path: str
    query: str  # as sent, without ``?``
    noted: Mapping[bytes, bytes]  # headers by lower-case name
    browser: Mapping[str, str]  # ``x-csrf-token``, ``sec-fetch-site`` and ``if-none-match``
    body: bytes
    peer: str  # the client's IP address


class ConsoleAnswer(NamedTuple):
    """A whole answer without its security headers."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Sequence[tuple[str, str]] = (("cache-control", "no-store"),)


class ChatAs(NamedTuple):
    """The request is a chat, which an engine answers in the name of this tenant."""

    tenant: TenantPolicy
