"""Errors of llama.cpp with status 500 that are the request's: clients would send the same request again. Pure."""

from __future__ import annotations

import json
import re

__all__ = ("error_of_request",)

_AT_FAULT = re.compile(r"(image|audio|video) input is not supported|Failed to parse (messages|tools): ")
_ECHO = re.compile(r"; (messages|tools) = .*", re.DOTALL)
"""The end of a message of llama.cpp that repeats the request."""


def error_of_request(body: bytes) -> bytes | None:
    """Return the body of the 400 that stands for this body of a 500; None where the engine is at fault."""
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(message, str) or not _AT_FAULT.match(message):
        return None
    error = {"message": _ECHO.sub("", message), "type": "invalid_request_error", "param": None, "code": 400}
    return json.dumps({"error": error}).encode()
