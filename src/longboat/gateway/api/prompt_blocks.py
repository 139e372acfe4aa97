"""The blocks of a request's prompt: which members of a body make it, in the order in which engines read them.

Members that change a prompt's beginning come first. See docs/concepts/prefixes.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import orjson

from longboat.gateway.api.body_fields import BodyKind
from longboat.gateway.native.prefix_names import prefix_names
from longboat.routing.prefixes.prompt import NO_ENDS

__all__ = ("NO_BLOCKS", "prompt_blocks")

_prefix_names: Final = prefix_names  # what is imported from C, compiled code would look up by its name each time
_TEMPLATE: Final = (b"chat_template", b"chat_template_kwargs", b"reasoning_effort", b"documents")
_FIELDS: Final = {
    BodyKind.CHAT: (*_TEMPLATE, b"tools", b"messages"),
    BodyKind.COMPLETIONS: (b"prompt",),
    BodyKind.RESPONSES: (b"reasoning", b"instructions", b"tools", b"input"),
    BodyKind.MESSAGES: (b"tools", b"system", b"messages"),
    BodyKind.GENERATE: (b"token_ids",),
    BodyKind.TGI: (b"inputs",),
}
NO_BLOCKS: Final[tuple[bytes, Sequence[int]]] = (b"", NO_ENDS)


def prompt_blocks(body: bytes, kind: BodyKind, seed: bytes) -> tuple[bytes, Sequence[int]]:
    """Return the names of a prompt's blocks and where they end; nothing where the body has no single prompt.

    seed: what keeps its cache apart from others: the model, the adapter, the salt of the tenant
    """
    fields = _FIELDS.get(kind)
    if fields is None:
        return NO_BLOCKS
    found = _prefix_names(body, fields, seed)
    if found is None:
        found = _prefix_names(_plain(body), fields, seed)
    return NO_BLOCKS if found is None else found


def _plain(body: bytes) -> bytes:
    """Write a body again, with plain keys."""
    try:
        return orjson.dumps(orjson.loads(body))
    except (orjson.JSONDecodeError, TypeError):
        return b""
