"""The blocks that one engine holds in its KV cache, by keys of their contents. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence

__all__ = ("Extra", "HeldBlocks", "block_keys")

Extra = Callable[[int, int], Hashable]
_ROOT = 0


def block_keys(token_ids: Sequence[int], block_tokens: int, extra: Extra | None) -> list[int]:
    """Return the keys of a prompt's full blocks.

    extra: what besides the tokens from one position to another makes a block's contents, such as an adapter
    """
    keys, key = [], _ROOT
    data, size = array("q", token_ids).tobytes(), 8 * block_tokens
    for at in range(len(token_ids) // block_tokens):
        more = extra(at * block_tokens, (at + 1) * block_tokens) if extra is not None else None
        key = hash((key, data[at * size : (at + 1) * size], more))
        keys.append(key)
    return keys


class HeldBlocks:
    """The blocks that the engine's events name. A block whose parent is unknown stays unknown."""

    def __init__(self) -> None:
        self._key_of: dict[Hashable, int] = {}  # the engine's hash of a held block → key
        self._num: dict[int, int] = {}  # key → how many blocks of the engine hold it

    def __contains__(self, key: int) -> bool:
        return key in self._num

    def num_leading(self, keys: Sequence[int]) -> int:
        """Return how many of a prompt's leading blocks are held."""
        held = self._num
        return next((at for at, key in enumerate(keys) if key not in held), len(keys))

    def stored(
        self, hashes: Sequence[Hashable], parent: Hashable | None, token_ids: Sequence[int], block_tokens: int,
        extras: Sequence[Hashable] | None, *, repeats: bool,
    ) -> list[int]:  # fmt: skip
        """Take the event that blocks came, and return the keys that were not held before.

        repeats: the engine may name blocks again that it named before
        """
        key = _ROOT if parent is None else self._key_of.get(parent)
        if key is None:
            return []
        data, size = array("q", token_ids).tobytes(), 8 * block_tokens
        came: list[int] = []
        for at, block in enumerate(hashes):
            key = hash((key, data[at * size : (at + 1) * size], extras[at] if extras else None))
            self._key_of[block] = key
            num = self._num.get(key, 0)
            self._num[key] = max(1, num) if repeats else num + 1
            if not num:
                came.append(key)
        return came

    def removed(self, hashes: Sequence[Hashable]) -> list[int]:
        """Take the event that blocks were evicted, and return the keys that are not held any more."""
        gone: list[int] = []
        for block in hashes:
            key = self._key_of.get(block)
            if key is None:
                continue
            num = self._num.get(key, 0)
            if num > 1:
                self._num[key] = num - 1
                continue
            del self._key_of[block]
            self._num.pop(key, None)
            gone.append(key)
        return gone

    def clear(self) -> None:
        self._key_of.clear()
        self._num.clear()
