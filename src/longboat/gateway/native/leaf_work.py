"""The compiled leaf work of the gateway, from ``_native.c``.

``scan`` returns what ``read_facts`` would for an ordinary chat or completions body, and None for any other: model,
stream, wants_usage, num_prompt_tokens_estimate, prompt_chars, max_tokens, n, user, whether neither
``stream_options`` nor ``cache_salt`` is in the document, so that either can be put before its first member, and where
the name of the model begins and ends between its quotes.

``counts_at`` reads the JSON object that begins at ``at``, an answer or an event of one in the words of OpenAI's chat.
It returns where the object ends, the number of its choices (-1: it has no such list), and its counts of prompt,
completion and cached tokens. None where it has no count of the completion, or is out of the ordinary.

``events_in`` returns the number of events that end in a block, and whether it has an object of usage.

``take_usage`` returns whole events without the one that tells only the tokens, and its counts of prompt, completion and
cached tokens. None where there is none, or anything is out of the ordinary.

``head_of`` returns the head of a message with which ``data`` begins, without the digits of its Content-Length, where
its body begins, and that length (-1: none). Heads of equal bytes have an equal reading. None where no head ends within
``max_bytes``.

``whole_chunks`` returns the body that ``data`` brings from ``at`` on, and whether it holds the last chunk. None where
the data is anything else than whole chunks.

``numbered`` returns whole events without the engine's fields for the gateway, each with an id of its own; the id and
the count for the next event; and whether all of them report tokens. None where an event is not plain: ids of one
choice, and no comment.

``spliced`` returns "{", ``inserted``, the body from behind its "{" to ``begin``, ``name`` and body[end:]. Nothing is
left out where ``begin`` and ``end`` are 0.

``json_line`` returns a line with one JSON object. Each key comes with its quotes and colon; there may be more keys than
values. A number that is not whole gets at most three decimals.

``named`` returns what ``tuple.__new__(cls, items)`` does: a named tuple, whose own ``__new__`` is a function in Python.
"""

from __future__ import annotations

from longboat.gateway.native import _native
from longboat.gateway.native._native import (
    ChunkPath,
    Histogram,
    TokenLog,
    counts_at,
    events_in,
    head_of,
    json_line,
    named,
    numbered,
    scan,
    spliced,
    take_usage,
    whole_chunks,
)

__all__ = (
    "ChunkPath",
    "Histogram",
    "TokenLog",
    "counts_at",
    "events_in",
    "head_of",
    "json_line",
    "named",
    "numbered",
    "scan",
    "spliced",
    "take_usage",
    "whole_chunks",
)

_INTERFACE = 14
"""One more whenever the compiled module's interface changes: one that an older source left behind is not used."""

if _native.INTERFACE != _INTERFACE:
    raise ImportError(
        f"{_native.__file__} has interface {_native.INTERFACE}, and its source has {_INTERFACE}: "
        "run `python hatch_build.py` in the checkout, or install longboat again"
    )
