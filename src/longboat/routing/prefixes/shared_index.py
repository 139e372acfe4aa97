"""The index that gateways use, from ``_index.c``: a table of fixed size that all processes of a node may share.

``SharedIndex(max_bytes, max_slots, path)`` keeps to ``max_bytes``. Processes that give the same ``path`` share one
table: the file must be in a folder that only this user can enter, and it must be removed before a gateway starts.
Without a path the memory belongs to this process and to those that it forks.

``slot_of`` gives a replica its slot, the same one in all processes; IndexError where all are taken. ``drop`` takes it
back, and ``clear`` only forgets what a replica holds. Both take no time: what they leave in the table is cleared by
``tidy``, which may run in a thread, or else by the next ``place`` in that slot. Either passes over the table once.

``UsedBlocks()`` holds blocks with their tokens, in the order in which they were used. ``use(blocks, ends, num_tokens)``
puts a prompt's blocks last, from the prompt's end to its beginning, and returns how many tokens are held then.
``make_room(most, spare_part)`` forgets the oldest blocks until at most ``most`` tokens are held, then one block more of
this number; the last block stays. ``forget(part, kept)`` forgets the oldest block of ``part``, but for those in
``kept``. Both return the names of what went.
"""

from __future__ import annotations

from longboat.routing.prefixes import _index
from longboat.routing.prefixes._index import SharedIndex, UsedBlocks

__all__ = ("SharedIndex", "UsedBlocks")

_INTERFACE = 3
"""One more whenever the compiled module's interface changes: one that an older source left behind is not used."""

if _index.INTERFACE != _INTERFACE:
    raise ImportError(
        f"{_index.__file__} has interface {_index.INTERFACE}, and its source has {_INTERFACE}: "
        "run `python hatch_build.py` in the checkout, or install longboat again"
    )
