"""One span in OTLP's binary encoding, from ``_spans.c``.

``span_field`` returns one element of ``ScopeSpans.spans``, with its tag and length. trace_id: 16 bytes; parent_id: 0
without a parent; since_s: Unix time, after which all other times are seconds; times_s: the span's beginning and end;
names: those of ``values``, the attributes, each as ``KeyValue.key`` encoded, and those of ``moments_s``, the events,
each as ``Event.name`` encoded; what is None is left out; error: its message, empty for a span without an error.
"""

from __future__ import annotations

from longboat.gateway.native import _spans
from longboat.gateway.native._spans import span_field

__all__ = ("span_field",)

_INTERFACE = 1
"""One more whenever the compiled module's interface changes: one that an older source left behind is not used."""

if _spans.INTERFACE != _INTERFACE:
    raise ImportError(
        f"{_spans.__file__} has interface {_spans.INTERFACE}, and its source has {_INTERFACE}: "
        "run `python hatch_build.py` in the checkout, or install longboat again"
    )
