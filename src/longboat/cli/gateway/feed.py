"""Sends a gateway its policy and its endpoint table, and remembers which of them it has."""

from __future__ import annotations

import secrets
from typing import Protocol

from longboat.core.errors import ClusterError
from longboat.core.policy import Policy
from longboat.core.states import Endpoint, EndpointTable

__all__ = ("GatewayFeed",)


class Control(Protocol):
    """The part of a gateway's control socket that a feed uses. Both calls raise ClusterError."""

    async def put_policy(self, policy: Policy) -> bool:
        """Replace the policy."""

    async def put_table(self, epoch: str, table: EndpointTable) -> bool:
        """Replace the endpoint table."""


class GatewayFeed:
    """What one gateway was sent last."""

    def __init__(self, control: Control, policy: Policy, models: tuple[str, ...]) -> None:
        """policy: that the gateway starts with; models: those of the same files"""
        self._control = control
        self._epoch = secrets.token_hex(8)
        self._version = 0
        self._policy = policy
        self._models = models  # of the files that the policy in force came from

    async def send(self, policy: Policy, models: tuple[str, ...], endpoints: tuple[Endpoint, ...]) -> None:
        """Send the policy if it is another one, and then the table.

        A policy that is refused keeps no table back: the engines' states are in it. The table then lacks models that
        are new, so that the old rules serve no new model.
        Raises ClusterError where the gateway refuses one of the two, or does not answer.
        """
        refusal = await self._send_policy(policy)
        if refusal is None:
            self._models = models
        known = tuple(model for model in models if model in self._models)
        self._version += 1
        told = tuple(endpoint for endpoint in endpoints if endpoint.model in known)
        await self._control.put_table(self._epoch, EndpointTable(version=self._version, models=known, endpoints=told))
        if refusal is not None:
            raise refusal

    async def _send_policy(self, policy: Policy) -> ClusterError | None:
        if policy == self._policy:
            return None
        try:
            await self._control.put_policy(policy)
        except ClusterError as error:
            return error
        self._policy = policy
        return None
