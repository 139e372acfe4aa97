"""Whether an engine is there: one small GET, with a deadline."""

from __future__ import annotations

import asyncio
import os
from urllib.parse import urlsplit

__all__ = ("LateError", "is_there")

_MAX_LINE = 4096


class LateError(OSError):
    """No answer in time: the engine is gone, or very busy."""


async def is_there(url: str, path: str, *, api_key: str = "", timeout_s: float) -> str:
    """Ask an engine at ``http://HOST:PORT`` for ``path``. Empty when it is well, else the reason in a few words.

    :raises LateError: it did not answer in ``timeout_s``
    """
    parts = urlsplit(url)
    authorization = f"authorization: Bearer {api_key}\r\n" if api_key else ""
    target = f"{parts.path.rstrip('/')}{path}"
    ask = f"GET {target} HTTP/1.1\r\nhost: {parts.netloc}\r\n{authorization}connection: close\r\n\r\n"
    try:
        async with asyncio.timeout(timeout_s):
            line = await _first_line(parts.hostname or "", parts.port or 80, ask.encode("latin-1"))
    except TimeoutError:
        raise LateError(f"no answer in {timeout_s:g} s") from None
    except OSError as error:
        return _reason(error)
    except (ValueError, UnicodeError) as error:
        return f"no HTTP: {error}"
    return _verdict(line)


async def _first_line(host: str, port: int, ask: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(host, port, limit=_MAX_LINE)
    try:
        writer.write(ask)
        return await reader.readline()
    finally:
        writer.transport.abort()


def _verdict(line: bytes) -> str:
    parts = line.split()
    if not line:
        return "it closed the connection"
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/") or not parts[1].isdigit():
        return "it does not speak HTTP"
    status = int(parts[1])
    return "" if status < 500 else f"status {status}"


def _reason(error: OSError) -> str:
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
    return reason.lower()
