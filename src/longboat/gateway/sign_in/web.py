"""Questions to the provider over HTTPS: checked certificates, deadlines, small answers, no redirects."""

from __future__ import annotations

import asyncio
import functools
import importlib
import ssl
from typing import Any

import orjson

from longboat.gateway.sign_in.problems import ProviderSilentError

__all__ = ("DEADLINE_S", "MAX_ANSWER_BYTES", "Web")

DEADLINE_S = 4.0
MAX_ANSWER_BYTES = 512 * 1024
_SILENT_S = 5.0
"""After a failure, questions to the same address fail at once for this time, so that requests do not queue up."""

_MAX_SILENT = 16


class Web:
    """Asks one provider."""

    def __init__(self) -> None:
        self._silent: dict[str, tuple[float, str]] = {}  # address: until when, of the loop's clock; why

    async def ask(
        self, url: str, *, form: dict[str, str] | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Return the status and the JSON document of an answer below 500. form: is posted; None: GET

        Raises ProviderSilentError.
        """
        loop = asyncio.get_running_loop()
        until_s, why = self._silent.get(url, (0.0, ""))
        if loop.time() < until_s:
            raise ProviderSilentError(f"{url}: {why}")
        try:
            async with asyncio.timeout(DEADLINE_S):
                status, body = await _answer(url, form, headers or {})
            if status >= 500 or status == 429:
                raise ProviderSilentError(f"it answered {status}")
            return status, _document(body)
        except TimeoutError:
            why = f"it did not answer within {DEADLINE_S:g} s"
        except ProviderSilentError as error:
            why = str(error)
        self._silent.pop(url, None)
        if len(self._silent) >= _MAX_SILENT:
            del self._silent[next(iter(self._silent))]
        self._silent[url] = (loop.time() + _SILENT_S, why)
        raise ProviderSilentError(f"{url}: {why}")


async def _answer(url: str, form: dict[str, str] | None, headers: dict[str, str]) -> tuple[int, bytes]:
    httpx, trust = await asyncio.to_thread(_loaded)
    try:
        async with (
            httpx.AsyncClient(verify=trust, follow_redirects=False, timeout=DEADLINE_S) as client,
            client.stream(
                "GET" if form is None else "POST", url, data=form, headers={"accept": "application/json", **headers}
            ) as answer,
        ):
            body = b""
            async for piece in answer.aiter_bytes(65_536):
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    raise ProviderSilentError(f"its answer is larger than {MAX_ANSWER_BYTES // 1024} KiB")
            return answer.status_code, body
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
        raise ProviderSilentError(f"it cannot be reached: {error or type(error).__name__}") from None


@functools.cache
def _loaded() -> tuple[Any, ssl.SSLContext]:
    """Import httpx and read the certificates that this machine trusts: about 200 ms, in a thread.

    SSL_CERT_FILE and SSL_CERT_DIR name other certificates.
    """
    return importlib.import_module("httpx"), ssl.create_default_context()


def _document(body: bytes) -> Any:
    """Return the JSON; None where it is something else, which only some callers mind."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
