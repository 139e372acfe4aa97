"""The fake engine's refusal: the one exception that becomes an HTTP error."""

from __future__ import annotations

__all__ = ("RefusedError",)


class RefusedError(Exception):
    """A request that is answered with ``status`` and this message; nothing was started."""

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param  # the field at fault
