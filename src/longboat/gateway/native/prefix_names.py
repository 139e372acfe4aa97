"""Names of a prompt's blocks, from ``_prefixes.c``.

``prefix_names(body, fields, seed)`` returns the names (8 bytes each, little-endian) and the ends of the blocks of these
members of the body's object, in this order. None where the body is not a JSON object with plain keys, a member stands
twice, or a member holds several prompts.
"""

from __future__ import annotations

from longboat.gateway.native import _prefixes
from longboat.gateway.native._prefixes import prefix_names

__all__ = ("prefix_names",)

_INTERFACE = 2
"""One more whenever the compiled module's interface changes: one that an older source left behind is not used."""

if _prefixes.INTERFACE != _INTERFACE:
    raise ImportError(
        f"{_prefixes.__file__} has interface {_prefixes.INTERFACE}, and its source has {_INTERFACE}: "
        "run `python hatch_build.py` in the checkout, or install longboat again"
    )
