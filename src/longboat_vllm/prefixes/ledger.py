"""The ledger of one engine's KV cache: which named prefixes of prompts it holds. Pure.

A gateway names prefixes by bytes, and an engine knows blocks of tokens. The ledger learns from each request how its
prompt's named blocks lie among its tokens: an anchor (a prompt's end, or the point where two prompts part) is exact,
and names between two anchors are placed in proportion to their bytes. The engine's KV events say which blocks of tokens
come and go. A block is known here by a *key*: a hash of its tokens and of all blocks before it, so that the engine's
own way of hashing does not matter.

A name needs the full blocks of tokens before its end. The last of these stands for all of them, because engines evict a
prefix from its end.

After events were lost, the engine holds blocks that no event will name. The ledger is *unsure* from then on, and where
a request finds more cached than the ledger knew: then requests should ask the engine to tell of blocks that it uses
again, too. Many requests in a row without a surprise make it sure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from longboat_vllm.prefixes.header import NamedPrompt
from longboat_vllm.prefixes.held_blocks import Extra, HeldBlocks, block_keys

__all__ = ("Noted", "PrefixLedger")

_MAX_UNHELD = 50_000
_MAX_AT_BLOCK = 64
"""Names that need one block: each prompt with a short end of its own brings another one, for as long as it is held."""
_SURE_AFTER = 500  # requests without a surprise


class Noted(NamedTuple):
    """What the ledger makes of a request before the engine takes it, in tokens."""

    expected: int  # that its gateway expects to be cached
    held: int  # that the ledger knows to be cached


class _Bound:
    """Where a name ends among the tokens."""

    __slots__ = ("exact", "key", "tokens")

    def __init__(self, key: int, tokens: int, exact: bool) -> None:
        self.key = key  # of the last full block before the end
        self.tokens = tokens
        self.exact = exact


class PrefixLedger:
    """The ledger. ``on_change(stored, names)`` is called with each change of what is held."""

    def __init__(self, block_tokens: int, on_change: Callable[[bool, list[bytes]], None]) -> None:
        self.block_tokens = block_tokens
        self._on_change = on_change
        self._held = HeldBlocks()
        # key → names that need it, the oldest first
        self._names: dict[int, dict[bytes, None]] = {}
        self._bound: dict[bytes, _Bound] = {}
        self._unheld: OrderedDict[int, None] = OrderedDict()  # keys with names that are not held, the oldest first
        self._num_sure = _SURE_AFTER  # requests without a surprise

    @property
    def unsure(self) -> bool:
        """Whether the engine may hold blocks that the ledger does not know."""
        return self._num_sure < _SURE_AFTER

    @property
    def num_names(self) -> int:
        return len(self._bound)

    def held_names(self) -> list[bytes]:
        """Return all names that are held."""
        return [name for key, names in self._names.items() if key in self._held for name in names]

    def note(self, prompt: NamedPrompt, token_ids: Sequence[int], extra: Extra | None = None) -> Noted:
        """Learn a request's names. extra: see ``block_keys``"""
        names, num_tokens = prompt.names, len(token_ids)
        keys = block_keys(token_ids, self.block_tokens, extra)
        if not names or not keys:
            return Noted(0, 0)
        known = next((at for at, name in enumerate(names) if name not in self._bound), len(names))
        bounds = [self._bound[name] for name in names[:known]]
        same = next(
            (at for at, one in enumerate(bounds) if one.key != _key_at(one.tokens // self.block_tokens, keys)), known
        )
        anchors = [(at, bound.tokens) for at, bound in enumerate(bounds[:same]) if bound.exact]
        first = known
        if same < known and bounds[same].key in self._held:
            first = same
            anchors.append((known - 1, self._held.num_leading(keys) * self.block_tokens))
        if not anchors or anchors[-1][0] < len(names) - 1:
            first = min(first, len(names) - 1)
            anchors.append((len(names) - 1, num_tokens))
        ends = _spread(prompt.ends, anchors)
        exact = {at for at, _ in anchors}
        for at in range(first, len(names)):
            self._bind(names[at], ends[at], at in exact, keys)
        self._spare({self._bound[name].key for name in names[first:]}, frozenset(names))
        expected = ends[prompt.expected - 1] if prompt.expected else 0
        most = (num_tokens - 1) // self.block_tokens
        expected = min(expected // self.block_tokens, most)
        return Noted(expected * self.block_tokens, min(self._held.num_leading(keys), most) * self.block_tokens)

    def found(self, noted: Noted, cached_tokens: int) -> None:
        """Take how much of a request's prompt was cached."""
        self._num_sure = 0 if cached_tokens > noted.held else self._num_sure + 1

    def stored(
        self, hashes: Sequence[Hashable], parent: Hashable | None, token_ids: Sequence[int], block_tokens: int,
        extras: Sequence[Hashable] | None = None,
    ) -> None:  # fmt: skip
        """Take the event that blocks came."""
        if block_tokens != self.block_tokens:  # the engine's blocks are longer or shorter than its settings say
            self._held.clear()
            for table in (self._names, self._bound, self._unheld):
                table.clear()
            self.block_tokens = block_tokens
        came: list[bytes] = []
        # While the ledger is unsure, requests ask the engine to repeat blocks.
        for key in self._held.stored(hashes, parent, token_ids, block_tokens, extras, repeats=self.unsure):
            if key in self._names:
                self._unheld.pop(key, None)
                came += self._names[key]
        if came:
            self._on_change(True, came)

    def removed(self, hashes: Sequence[Hashable]) -> None:
        """Take the event that blocks were evicted."""
        gone = [name for key in self._held.removed(hashes) for name in self._forget(key)]
        if gone:
            self._on_change(False, gone)

    def reset(self) -> None:
        """Take nothing to be held, because events were lost. The caller informs gateways."""
        self._num_sure = 0
        self.clear()

    def clear(self) -> None:
        """Take the event that the cache was cleared. The caller informs gateways."""
        self._held.clear()
        for key in tuple(self._names):  # where names lie among tokens stays true
            self._wait(key)

    def _bind(self, name: bytes, tokens: int, exact: bool, keys: list[int]) -> None:
        key = _key_at(tokens // self.block_tokens, keys)
        was_held = self._unbind(name)
        self._bound[name] = _Bound(key, tokens, exact)
        self._names.setdefault(key, {})[name] = None
        is_held = key in self._held
        if not is_held:
            self._wait(key)
        if is_held != was_held:
            self._on_change(is_held, [name])

    def _spare(self, keys: Iterable[int], own: frozenset[bytes]) -> None:
        """Forget the oldest names of blocks that too many names need. own: names that stay, and are the newest now"""
        gone: list[bytes] = []
        for names in [self._names[key] for key in keys]:
            if len(names) <= _MAX_AT_BLOCK:
                continue
            oldest = [name for name in names if name not in own][: _MAX_AT_BLOCK // 2]
            for name in own & names.keys():
                names[name] = names.pop(name)
            for name in oldest:
                if self._unbind(name):
                    gone.append(name)
                del self._bound[name]
        if gone:
            self._on_change(False, gone)

    def _unbind(self, name: bytes) -> bool:
        """Return whether the name was held where it was bound so far."""
        old = self._bound.get(name)
        if old is None:
            return False
        names = self._names[old.key]
        del names[name]
        if not names:
            del self._names[old.key]
            self._unheld.pop(old.key, None)
        return old.key in self._held

    def _wait(self, key: int) -> None:
        """Keep names of a block that is not held yet, within a bound."""
        self._unheld[key] = None
        self._unheld.move_to_end(key)
        while len(self._unheld) > _MAX_UNHELD:
            self._forget(self._unheld.popitem(last=False)[0])

    def _forget(self, key: int) -> list[bytes]:
        """Forget the names that need a block, and return them."""
        names = list(self._names.pop(key, ()))
        for name in names:
            self._bound.pop(name, None)
        return names


def _key_at(num_blocks: int, keys: Sequence[int]) -> int:
    """Return the key of the last of the first ``num_blocks`` blocks; of the first block where they are none."""
    return keys[min(max(1, num_blocks), len(keys)) - 1]


def _spread(ends: Sequence[int], anchors: Sequence[tuple[int, int]]) -> list[int]:
    """Return where each named block ends among the tokens.

    anchors: indexes of names, and where exactly these end; the last name is one
    """
    found: list[int] = []
    base_end = base_tokens = 0
    for at, tokens in anchors:
        span = max(1, ends[at] - base_end)
        room = max(0, tokens - base_tokens)
        found += [base_tokens + room * (ends[i] - base_end) // span for i in range(len(found), at + 1)]
        base_end, base_tokens = ends[at], max(tokens, base_tokens)
    return found
