"""A call of the admin API: its client's rights, what it was asked with, and its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from longboat.gateway.admin.node_view import Node
from longboat.gateway.config import GatewayConfig
from longboat.gateway.http.responses import Refusal
from longboat.gateway.limits.policy_view import LivePolicy
from longboat.gateway.orders.model_orders import ModelOrders
from longboat.gateway.sign_in.desk import SignInDesk
from longboat.gateway.upstreams.table import LiveTable

__all__ = (
    "ROLES",
    "AdminAnswer",
    "AdminCall",
    "AdminCaller",
    "AdminState",
    "bad_query",
    "may_steer",
    "not_allowed",
    "whole_number",
)

ROLES = {"viewer": 1, "operator": 2}


class AdminAnswer(NamedTuple):
    """A response of the admin API."""

    status: int
    # a JSON document, or whole bytes
    body: dict[str, Any] | bytes
    content_type: str = "application/json"


class AdminState(Protocol):
    """The parts of the gateway that the admin API needs: policy, keys, endpoints, and the view of the node."""

    @property
    def config(self) -> GatewayConfig: ...
    @property
    def live(self) -> LivePolicy: ...
    @property
    def node(self) -> Node: ...
    @property
    def table(self) -> LiveTable: ...
    @property
    def sign_in(self) -> SignInDesk: ...
    @property
    def model_orders(self) -> ModelOrders: ...


class AdminCaller(NamedTuple):
    """The rights of a client."""

    # the role by its number in ROLES; 0: without a role
    rank: int = 0
    # without a role: the tenant whose records may be read
    tenant: str | None = None
    # whether a key was presented and found
    known: bool = False
    # whether the metrics may be read without a role
    scrapes: bool = False
    # of an admin, or of a person whom the provider knows
    name: str = ""


class AdminCall(NamedTuple):
    """A call with the rights of its client."""

    state: AdminState
    caller: AdminCaller
    query: Mapping[str, str]
    body: bytes
    host: str  # as the client named this gateway

    @property
    def node(self) -> Node:
        return self.state.node

    @property
    def only(self) -> str | None:
        """The tenant whose records may be read; None reads all."""
        return self.caller.tenant if not self.caller.rank else None


def may_steer(rank: int) -> bool:
    """Return whether a role may change something, and not only read. rank: its number in ROLES"""
    return rank >= ROLES["operator"]


def not_allowed(caller: AdminCaller, what: str, role: str) -> Refusal:
    if caller.known:
        message = f"This key does not give access to {what}. Use an admin key with the role {role!r}."
        return Refusal(status=403, message=message, code="not_allowed")
    message = f"To use {what}, send 'Authorization: Bearer KEY' with an admin key (gateway.admin in the fleet file)."
    return Refusal(status=401, message=message, code="admin_key_required")


def bad_query(name: str, most: int) -> Refusal:
    return Refusal(status=400, message=f"{name!r} must be a number from 1 to {most}.", code="bad_query", param=name)


def whole_number(text: str, most: int) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 7 and 1 <= int(text) <= most else None
