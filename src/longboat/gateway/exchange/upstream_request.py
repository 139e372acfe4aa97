"""Makes the body that a pool's engines get, and the header lines that report the choice of the model to a client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from longboat.gateway.api.body import splice

if TYPE_CHECKING:
    from longboat.gateway.calls.model_request import Call
    from longboat.gateway.upstreams.upstream import Upstream

__all__ = ("body_for", "has_usage", "pool_lines", "request_start")

_MAX_STARTS: Final = 64  # engines whose heads one plan keeps


def body_for(call: Call) -> bytes:
    """Return the body for the engines of the pool that is being tried."""
    facts = call.facts
    if facts is None:
        return call.body
    model = call.pool if call.pool != facts.model else None
    call.adds_usage = facts.usage_addable
    if call.outside is not None:  # the salt is a secret of the fleet
        return splice(call.body, facts, model=call.outside.model.model or call.pool, add_usage=True, cache_salt=None)
    return splice(call.body, facts, model=model, add_usage=True, cache_salt=call.salt)


def request_start(call: Call, upstream: Upstream) -> bytes:
    """Return the head of a request to this engine, up to what differs in each.

    Of the fleet's own engines, it is kept for later requests with the client's head.
    """
    plan, forwarded = call.plan, call.request.forwarded
    if plan is None or plan.forwarded is not forwarded or upstream.address is not None:
        return upstream.request_start(call.method, call.path, forwarded)
    start = plan.starts.get(upstream)
    if start is None:
        if len(plan.starts) >= _MAX_STARTS:
            plan.starts.clear()
        start = plan.starts[upstream] = upstream.request_start(call.method, call.path, forwarded)
    return start


def has_usage(call: Call) -> bool:
    """Return whether the answer's tokens are to be read."""
    return call.facts is not None


def _moved(call: Call) -> bytes:
    if call.overflow is not None and call.at_pool == call.overflow.at_pool:
        return b"x-longboat-overflow: 1\r\n"
    return b"x-longboat-fallback: %d\r\n" % call.at_pool


def pool_lines(call: Call) -> bytes:
    """Header lines that say which model answers where it is not the one asked for, and whether as a fallback."""
    fallback = _moved(call) if call.at_pool else b""
    if call.outside is not None:
        fallback += b"x-longboat-external: %b\r\n" % call.outside.model.api.encode()
    if call.pool == call.requested:
        return fallback
    return _model_line(call.pool) + fallback


_MODEL_LINES: Final[dict[str, bytes]] = {}
_MAX_MODEL_LINES: Final = 4096


def _model_line(model: str) -> bytes:
    """Return the header line that names a model to clients. There are few models, so the lines are kept."""
    found = _MODEL_LINES.get(model)
    if found is None:
        if len(_MODEL_LINES) >= _MAX_MODEL_LINES:
            _MODEL_LINES.clear()
        found = _MODEL_LINES[model] = b"x-longboat-model: %b\r\n" % model.encode("latin-1", "replace")
    return found
