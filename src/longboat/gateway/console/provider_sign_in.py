"""Signing in at the console through the fleet's provider: to it, and back."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

from longboat.gateway.api.paths import unknown_path
from longboat.gateway.console.asked import Asked, ConsoleAnswer, ConsoleState, source_of
from longboat.gateway.console.sessions import cookie_line, cookie_value
from longboat.gateway.http.error_responses import method_not_allowed
from longboat.gateway.http.responses import Refusal
from longboat.gateway.sign_in.problems import ProviderSilentError, RefusedError
from longboat.gateway.sign_in.way import WAY_S, console_url_of
from longboat.telemetry import logger

__all__ = ("answer_provider", "provider_of", "silent")

log = logger("gateway")

START = "/console/api/oidc/start"
_COOKIE_PATH = "/console/api/oidc"
_MAX_QUERY_CHARS = 16_384


def provider_of(state: ConsoleState, asked: Asked) -> dict[str, Any] | None:
    """Return what the page shows of the provider: its name, and where to go; None where there is none.

    A browser at an address to which the provider sends no browser back is sent to the first that works.
    """
    sign_in = state.live.policy.sign_in
    if sign_in is None:
        return None
    here = console_url_of(sign_in, _host(asked))
    return {
        "name": urlsplit(sign_in.issuer).netloc,
        "url": START if here is not None else f"{sign_in.console_urls[0]}/console",
        "here": here is not None,
    }


def silent(error: ProviderSilentError) -> Refusal:
    """Return the answer while the provider cannot be asked."""
    log.warning("the provider of gateway.sign_in: %s", error)
    message = "The sign-in provider does not answer, so your rights cannot be checked. Try again in a moment."
    return Refusal(status=503, message=message, code="provider_silent", retry_after_s=5)


async def answer_provider(state: ConsoleState, asked: Asked, name: str, now_s: float) -> Refusal | ConsoleAnswer:
    """Serve ``oidc/start`` and ``oidc/callback``: a redirect, to the provider or to the console."""
    if name not in ("start", "callback") or state.live.policy.sign_in is None:
        return unknown_path(asked.path)
    if asked.method != "GET":
        return method_not_allowed(asked.method, "GET")
    source = source_of(state, asked)
    if state.console.provider_failures.pause_s(source, now_s):
        return _back("busy")
    try:
        return await (_start(state, asked) if name == "start" else _callback(state, asked, now_s))
    except RefusedError as error:
        if error.code != "expired":  # a link from anywhere leads to that, without a sign-in of this browser
            state.console.provider_failures.note(source, now_s)
        log.warning("a sign-in was refused: %s", error)
        return _back(error.code)
    except (ProviderSilentError, OSError) as error:
        log.warning("a sign-in failed: %s", error)
        return _back("silent")


async def _start(state: ConsoleState, asked: Asked) -> Refusal | ConsoleAnswer:
    sign_in = state.live.policy.sign_in
    assert sign_in is not None
    console_url = console_url_of(sign_in, _host(asked))
    if console_url is None:
        message = (
            f"{_host(asked)[:200]!r} is not among gateway.sign_in.console_urls, so the provider sends no browser back "
            f"to it. Open {sign_in.console_urls[0]}/console, or add the address. A proxy must leave Host as it is."
        )
        return Refusal(status=400, message=message, code="other_address")
    departure = await state.sign_in.begin(sign_in, console_url)
    return _redirect(departure.url, _way_cookie(state, departure.sealed, console_url))


async def _callback(state: ConsoleState, asked: Asked, now_s: float) -> ConsoleAnswer:
    sign_in, console = state.live.policy.sign_in, state.console
    assert sign_in is not None
    sealed = cookie_value(_way_name(state), asked.noted)
    given = dict(reversed(parse_qsl(asked.query[:_MAX_QUERY_CHARS])))
    arrival = await state.sign_in.finish(sign_in, sealed, given)
    is_secure = console.is_secure or (console_url_of(sign_in, _host(asked)) or "").startswith("https:")
    cookie = console.sessions.begin_person(sign_in, arrival.session_id, arrival.name, now_s)
    log.info("%s signed in at the console", arrival.name)
    session = cookie_line(console.cookie, cookie, secure=is_secure)
    return _redirect("/console/", session, _way_cookie(state, "", ""))


def _way_name(state: ConsoleState) -> str:
    return f"{state.console.cookie}_way"


def _way_cookie(state: ConsoleState, sealed: str, console_url: str) -> tuple[str, str]:
    """Return the header for what the browser carries to the provider and back: a redirect from there brings it."""
    is_secure = state.console.is_secure or console_url.startswith("https:")
    life_s = int(WAY_S) if sealed else 0
    attributes = f"Path={_COOKIE_PATH}; Max-Age={life_s}; HttpOnly; SameSite=Lax{'; Secure' if is_secure else ''}"
    return "set-cookie", f"{_way_name(state)}={sealed}; {attributes}"


def _back(code: str) -> ConsoleAnswer:
    """Return a redirect to the page, which explains the code; the log has the reason."""
    return _redirect(f"/console/?sign_in={code}")


def _redirect(url: str, *headers: tuple[str, str]) -> ConsoleAnswer:
    return ConsoleAnswer(303, b"", headers=(("location", url), ("cache-control", "no-store"), *headers))


def _host(asked: Asked) -> str:
    return asked.noted.get(b"host", b"").decode("latin-1").strip()
