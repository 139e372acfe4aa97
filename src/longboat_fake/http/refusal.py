"""How the fake engine says no: the one exception that becomes an HTTP error."""

from __future__ import annotations

__all__ = ("RefusedError",)


class RefusedError(Exception):
    """The request is answered with ``status`` and this message; nothing was started. ``param``: the field at fault."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
