"""Leaf work of the gateway: compiled, or its Python twins where there is no compiled one or LONGBOAT_NATIVE is 0.

scan: what ``read_facts`` says of an ordinary chat or completions body; None where ``read_facts`` itself must look.
The tuple is: model, stream, wants_usage, num_prompt_tokens_estimate, prompt_chars, max_tokens, n, user, and whether
neither ``stream_options`` nor ``cache_salt`` is in the document, so that either can be put before its first member.
head_of: where data begins with the head of a message, that head without the digits of its Content-Length, where its
body begins, and that length (-1: none): equal bytes mean an equal reading. None where no head ends within max_bytes.
whole_chunks: the body that data brings from ``at`` on, where it is whole chunks and nothing else; and whether the last.
numbered: whole events without the engine's words to us, each with an id of its own; the id and count that the next is
numbered with; and whether all of them tell tokens. None where an event is not plain: ids of one choice, and no comment.
access_line: the bytes of ``access_record``'s line; None where a text is no plain ASCII, or a number not of its type.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

__all__ = (
    "IS_NATIVE",
    "ChunkPath",
    "Histogram",
    "TokenLog",
    "access_line",
    "head_of",
    "numbered",
    "scan",
    "whole_chunks",
)

_INTERFACE = 10
"""One more whenever the compiled module's interface changes: one that an older source left behind is not used."""


def _is_usable() -> bool:
    if os.environ.get("LONGBOAT_NATIVE") == "0":
        return False
    try:
        from longboat.gateway.native import _native
    except ImportError:
        return False
    return _native.INTERFACE == _INTERFACE


IS_NATIVE = _is_usable()
"""Whether the compiled ones are in use."""

if TYPE_CHECKING or IS_NATIVE:
    from longboat.gateway.native._native import (
        ChunkPath,
        Histogram,
        TokenLog,
        access_line,
        head_of,
        numbered,
        scan,
        whole_chunks,
    )
else:
    from longboat.gateway.native.native_twin import (
        ChunkPath,
        Histogram,
        TokenLog,
        access_line,
        head_of,
        numbered,
        scan,
        whole_chunks,
    )
