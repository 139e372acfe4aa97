"""Traces of requests across gateway and engine: W3C ``traceparent``, and OTLP over HTTP where it is configured."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ("Span", "TraceParent", "Tracer", "parse_traceparent")


class TraceParent(NamedTuple):
    """Ids as lower-case hex: 32 and 16 characters."""

    trace_id: str
    span_id: str
    sampled: bool


def parse_traceparent(value: bytes) -> TraceParent | None:
    """None where it is not what https://www.w3.org/TR/trace-context/ says; the trace then starts anew."""
    return None


class Span:
    """One request. All times are ``time.time_ns()``; ends by :meth:`Tracer.finish`."""

    __slots__ = ("trace_id", "span_id", "parent_id", "name", "start_ns", "attributes", "attempts", "tracestate")

    def attempt(self, replica: str) -> bytes:
        """The request is sent to a replica now: the header lines for it (``traceparent``, ``tracestate``).

        An attempt before this one ended without an answer.
        """
        return b""


class Tracer:
    """Decides which requests are traced, and hands finished spans to a thread that exports them.

    sample_ratio: of the requests that bring no decision of their own
    :raises UserInputError: OpenTelemetry's SDK or its OTLP exporter is not installed
    """

    def __init__(self, endpoint: str, *, sample_ratio: float = 1.0, resource: dict[str, str] | None = None) -> None: ...

    def start(self, traceparent: bytes | None, tracestate: bytes | None = None, *, name: str = "") -> Span | None:
        """None: this request is not traced. The client's own headers are then passed on as they came."""
        return None

    def finish(
        self, span: Span, *, status: int, outcome: str, attributes: dict[str, str | int | float] | None = None
    ) -> None:
        """The request ended. attributes: names as OpenTelemetry's conventions have them. Never blocks."""

    def close(self, timeout_s: float = 2.0) -> None:
        """Export what waits, for at most this long. Blocks: call it in a thread."""
