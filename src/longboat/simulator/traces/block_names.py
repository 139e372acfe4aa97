"""Names of blocks for traces: 64-bit hashes of everything from a prompt's first block to the block's end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from longboat.simulator.traces._names import chain

__all__ = ("chained", "chained_names", "even_ends", "mix")

_MASK = (1 << 64) - 1


def mix(value: int) -> int:
    """Return 64 bits in which each bit depends on all bits of ``value`` (splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def chained(name: int, block: int) -> int:
    """Return the name of the block after the one with this name, from what it holds."""
    return mix(3 * name + mix(block))


def chained_names(blocks: Iterable[int], salt: int = 0) -> bytes:
    """Return the names of blocks from what each of them holds: two prompts share a name where all before is equal.

    salt: prompts with another one share nothing
    """
    return chain(blocks, mix(salt))


def even_ends(tokens: int, block_tokens: int) -> Sequence[int]:
    """Return where blocks of equal size end; the last one ends the prompt."""
    ends = list(range(block_tokens, tokens, block_tokens))
    ends.append(tokens)
    return ends
