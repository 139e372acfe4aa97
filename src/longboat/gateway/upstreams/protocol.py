"""The event loop's side of a connection to an engine. Never compiled with the others: its base is written in C."""

from __future__ import annotations

from typing import Any

from longboat.gateway.native.leaf_work import ChunkPath

__all__ = ("EngineProtocol",)


class EngineProtocol(ChunkPath):
    """An asyncio protocol; ``owner`` is an ``UpstreamConnection`` until the connection is lost."""

    __slots__ = ()

    def connection_made(self, transport: Any) -> None:
        self.owner.connection_made(transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self.owner is not None:
            self.owner.connection_lost(error)

    def eof_received(self) -> None:
        if self.owner is not None:
            self.owner.eof_received()

    def pause_writing(self) -> None:
        """Do nothing: a request is written whole."""

    def resume_writing(self) -> None: ...
