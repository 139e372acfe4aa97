"""How much of what prompts repeat was evicted before they came: whether caches are large enough for the load."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from longboat.routing.prefixes.prompt import BLOCK_BYTES

__all__ = ("LostReuse",)

_SAMPLED: Final = 8  # of 256 blocks are followed: those whose name begins with a byte below it
_MAX_NAMES: Final = 32_768  # names of blocks that are remembered: of about a million blocks
_MEMORY: Final = 0.999  # weight that a prompt keeps with each new one: about 1,000 count


class LostReuse:
    """Compares what replicas hold of each prompt with what an endless cache would, on a sample of the blocks."""

    def __init__(self) -> None:
        self._seen: OrderedDict[bytes, None] = OrderedDict()  # names of sampled blocks, used least recently first
        self._held = 0.0  # repeated blocks that a replica held, with forgetting
        self._lost = 0.0  # those that none did

    @property
    def part(self) -> float:
        """Return the part of the repeated blocks that no replica held any more; 0 where none was repeated."""
        return self._lost / max(1.0, self._held + self._lost)

    def note(self, blocks: bytes, depth: int) -> None:
        """Count a prompt. depth: of its leading blocks, those that a replica holds"""
        self._held *= _MEMORY
        self._lost *= _MEMORY
        seen = self._seen
        for at in range(0, len(blocks), BLOCK_BYTES):
            if blocks[at] < _SAMPLED:
                name = blocks[at : at + BLOCK_BYTES]
                if name in seen:
                    seen.move_to_end(name)
                    if at < depth * BLOCK_BYTES:
                        self._held += 1.0
                    else:
                        self._lost += 1.0
                else:
                    seen[name] = None
        while len(seen) > _MAX_NAMES:
            seen.popitem(last=False)
