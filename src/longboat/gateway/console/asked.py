"""Requests for the console and its answers, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from longboat.core.clock import Clock
from longboat.core.policy import TenantPolicy
from longboat.gateway.admin.admin_call import AdminState
from longboat.gateway.console.console import Console
from longboat.gateway.limits.client_address import client_address, household

__all__ = ("Asked", "ChatAs", "ConsoleAnswer", "ConsoleState", "is_encrypted", "source_of")


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


def source_of(state: ConsoleState, asked: Asked) -> str:
    """Return by whom failed sign-ins count: the client's address, also behind a proxy that the fleet trusts."""
    forwarded = asked.noted.get(b"x-forwarded-for", b"")
    return household(client_address(asked.peer, forwarded, state.live.proxies))


def is_encrypted(state: ConsoleState, asked: Asked) -> bool:
    """Return whether the browser speaks TLS, with the gateway or with a proxy: it names the origin of its page."""
    return state.console.is_secure or asked.noted.get(b"origin", b"").startswith(b"https://")


class ConsoleAnswer(NamedTuple):
    """A whole answer without its security headers."""

    status: int
    body: bytes
    content_type: str = "application/json"
    headers: Sequence[tuple[str, str]] = (("cache-control", "no-store"),)


class ChatAs(NamedTuple):
    """The request is a chat, which an engine answers in the name of this tenant."""

    tenant: TenantPolicy
