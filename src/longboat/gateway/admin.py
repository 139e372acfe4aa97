"""The admin API and ``/metrics``: who may ask, what is answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from longboat.core.policy import Policy, TenantPolicy
from longboat.gateway.answers import Refusal
from longboat.gateway.node import Node

__all__ = ("AdminAnswer", "AdminState", "answer", "is_admin_path")


class AdminAnswer(NamedTuple):
    """body: a JSON document, or whole bytes."""

    status: int
    body: dict[str, Any] | bytes
    content_type: str = "application/json"


class TenantKeys(Protocol):
    """Who a presented key belongs to."""

    def tenant_of(self, presented: bytes, now_s: float) -> TenantPolicy | None: ...


class AdminState(Protocol):
    """What the admin API needs of the gateway: its policy, its keys, and whoever answers for the node."""

    @property
    def policy(self) -> Policy: ...
    @property
    def keys(self) -> TenantKeys: ...
    @property
    def node(self) -> Node: ...


def is_admin_path(path: str) -> bool:
    """Whether :func:`answer` is to be asked."""
    return path == "/metrics" or path == "/admin" or path.startswith("/admin/")


async def answer(
    state: AdminState, method: str, path: str, query: str, noted: Mapping[bytes, bytes], peer: str
) -> Refusal | AdminAnswer:
    """noted: the request's headers by lower-case name; ``authorization``, ``x-forwarded-for``, ``forwarded`` are read.

    query: as sent, without ``?``; peer: the client's IP address
    """
    raise NotImplementedError
