"""What routing knows of a request: how long its prompt is, and which prefixes it begins with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from longboat.compiled import mypyc_attr

__all__ = ("BLOCK_BYTES", "NO_ENDS", "Prompt", "masked")

BLOCK_BYTES: Final = 8
NO_ENDS: Final[Sequence[int]] = ()


@mypyc_attr(acyclic=True)
class Prompt:
    """One request, as routing sees it.

    A prompt is cut into blocks. The name of a block is a 64-bit hash of everything from the prompt's first byte to the
    block's end, with the salts of tenant and adapter: prompts that share a name share all that lies before its end.
    """

    __slots__ = ("blocks", "ends", "key", "max_output_tokens", "num_tokens", "session")

    def __init__(
        self,
        key: str,
        num_tokens: int,
        *,
        blocks: bytes = b"",
        ends: Sequence[int] = NO_ENDS,
        max_output_tokens: int | None = None,
        session: str = "",
    ) -> None:
        self.key = key  # differs from that of every other request in flight
        self.num_tokens = num_tokens  # of the prompt, estimated
        self.blocks = blocks  # names of its blocks, first to last: 8 bytes each, little-endian
        self.ends = ends  # where each block ends, in any unit that grows with the tokens; the last one ends the prompt
        self.max_output_tokens = max_output_tokens  # None: the client set no limit
        self.session = session  # what its conversation is called; empty: unknown

    @property
    def num_blocks(self) -> int:
        return len(self.blocks) // BLOCK_BYTES

    def tokens_at(self, depth: int) -> int:
        """Return the tokens of its first ``depth`` blocks."""
        return self.num_tokens * self.ends[depth - 1] // self.ends[-1] if depth else 0


def masked(names: bytes, mask: bytes) -> bytes:
    """Return other names of blocks, which are equal where these are. mask: of the length of one name"""
    whole = mask * (len(names) // BLOCK_BYTES)
    return (int.from_bytes(names) ^ int.from_bytes(whole)).to_bytes(len(names))
