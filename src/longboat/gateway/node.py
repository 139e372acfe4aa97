"""Answers for the whole node: this process alone, or, in a worker, through the parent of all workers."""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ("Node",)


class Node(Protocol):
    """What may be asked of a node's gateway, whichever of its processes is hit.

    Documents carry ``missing``: names of processes that did not answer in a second.
    """

    async def report(self) -> dict[str, Any]: ...
    async def metrics(self) -> dict[str, Any]:
        """A merged snapshot: see ``metrics.merge``."""

    async def request(self, request_id: str, tenant: str | None = None) -> dict[str, Any]:
        """{"request": timeline or None, "missing": […]}. tenant: only a request of this one."""

    async def requests(self, tenant: str | None, limit: int) -> dict[str, Any]:
        """{"requests": […], "missing": […]}: the newest first, of one tenant or (None) of all."""

    async def usage(self) -> dict[str, Any]:
        """{"usage": [{tenant, model, day, requests, prompt_tokens, completion_tokens, cached_tokens}], "missing": […]}."""

    async def owner(self, response_id: str) -> dict[str, Any]:
        """{"owner": replica key or None, "missing": […]}: who holds a response of the Responses API."""

    async def drain(self) -> None: ...
    async def undrain(self) -> None: ...
