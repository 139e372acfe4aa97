"""The controller's reading of the fleet file that runs: once for each change of it, beside the controller's work."""

from __future__ import annotations

import asyncio

from longboat.cluster.protocol.shown import ShownFleet, shown_fleet
from longboat.core.errors import LongboatError

__all__ = ("RunningFile",)


class RunningFile:
    """What is shown of the newest text."""

    def __init__(self) -> None:
        self._text = ""
        self._shown: ShownFleet | None = None

    async def shown(self, text: str) -> ShownFleet | None:
        """Return what is shown of a text; None where this version cannot read it."""
        if text != self._text:
            self._text, self._shown = text, await asyncio.to_thread(_read, text)
        return self._shown


def _read(text: str) -> ShownFleet | None:
    from longboat.spec.files.load import load_fleet

    try:
        return shown_fleet(load_fleet(text, "the running fleet"))
    except LongboatError:
        return None
