"""Checks whether an engine responds: one small GET, with a deadline."""

from __future__ import annotations

import os

from longboat.gateway.http.message import ask

__all__ = ("LateError", "is_there")


class LateError(OSError):
    """No response in time: the engine is gone, or very busy."""


async def is_there(url: str, path: str, *, api_key: str = "", timeout_s: float) -> str:
    """Ask an engine at ``http://HOST:PORT`` for ``path``. Return "" when it is well, else the reason in a few words.

    :raises LateError: it did not respond within ``timeout_s``
    """
    try:
        answer = await ask(url, path, api_key=api_key, timeout_s=timeout_s, head_only=True)
    except TimeoutError:
        raise LateError(f"no answer in {timeout_s:g} s") from None
    except OSError as error:
        return _reason(error)
    except ValueError as error:
        return str(error)
    return "" if answer.status < 500 else f"status {answer.status}"


def _reason(error: OSError) -> str:
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
    return reason.lower()
