"""Cross-origin requests of web pages: off unless the fleet names origins."""

from __future__ import annotations

from longboat.gateway.http.request import Request
from longboat.gateway.limits.policy_view import LivePolicy

__all__ = ("answer_to_origin",)

_EXPOSED = (
    b"x-request-id, request-id, x-longboat-replica, x-longboat-model, x-longboat-fallback, x-longboat-resume,"
    b" retry-after, x-should-retry"
)


def answer_to_origin(live: LivePolicy, request: Request, *, close: bool) -> bytes | None:
    """Note the header lines that the response needs; return the whole response to a preflight request, else None.

    There are none for an origin that the policy does not name, so the browser hides the response from its page.
    """
    origin = request.noted[b"origin"]
    if not (live.cors_any or origin in live.cors_origins):
        return None
    allowed = b"*" if live.cors_any else origin
    lines = b"access-control-allow-origin: %b\r\nvary: Origin\r\naccess-control-expose-headers: %b\r\n"
    request.extra_lines += lines % (allowed, _EXPOSED)
    if request.method != "OPTIONS" or b"access-control-request-method" not in request.noted:
        return None
    headers = request.noted.get(b"access-control-request-headers", b"authorization, content-type")
    return (
        b"HTTP/1.1 204 No Content\r\n%baccess-control-allow-methods: GET, POST, DELETE, OPTIONS\r\n"
        b"access-control-allow-headers: %b\r\naccess-control-max-age: %d\r\nx-request-id: %b\r\n%b\r\n"
        % (
            request.extra_lines,
            headers,
            live.policy.cors.max_age_s,
            request.request_id.encode(),
            b"connection: close\r\n" if close else b"",
        )
    )
