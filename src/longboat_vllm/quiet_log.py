"""Keeps requests that come several times a second, all day long, out of the engine's log."""

from __future__ import annotations

import logging

__all__ = ("hush",)

_ACCESS_LOG = "uvicorn.access"
_PATHS = ("/longboat/v1/steps", "/metrics")
_PATH_AT = 2  # index in the arguments of a line: client, method, path, version, status


class _Quiet(logging.Filter):
    """A filter of the access log."""

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args
        known = isinstance(arguments, tuple) and len(arguments) > _PATH_AT
        return not (known and str(arguments[_PATH_AT]).startswith(_PATHS))  # type: ignore[index]


def hush() -> None:
    """Leave these paths out of the access log. May be called again."""
    access = logging.getLogger(_ACCESS_LOG)
    if not any(isinstance(known, _Quiet) for known in access.filters):
        access.addFilter(_Quiet())
