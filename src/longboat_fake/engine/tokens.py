"""The fake engine's language: which token comes at which position, and how text and token ids map to each other."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from hashlib import blake2b

__all__ = (
    "VOCABULARY",
    "StopFilter",
    "decode",
    "encode",
    "natural_length",
    "piece",
    "prompt_digest",
    "ratio_at",
    "token_at",
    "token_of",
)

_WORDS = (
    "the a one many boat crew river harbour rope sail oar tide wind wave shore light north south deep slow fast long "
    "small old new red blue green row rows rowed carry carries hold holds turn turns wait waits reach reaches and or "
    "but so then when while under over across beside before after with without from into toward we they it she he "
    "every each some most three four seven ten token answer question word line page name key lock door node link "
    "engine prompt cache block batch queue plan gate stream journal replica router layer tensor pipeline weight "
    "café naïve Zürich Ångström garçon señor über Straße łódź čeština ελληνικά θάλασσα корабль река море שלום سفينة "
    "नाव नदी เรือ 東京 海 船 川 こんにちは ボート 서울 배 바다 Việt 🚣 🌊 ⛵ 👩‍🚀 🏳️‍🌈 é ﬁ ½ ∑ → “boat” don’t"
)
VOCABULARY: tuple[str, ...] = tuple(_WORDS.split())
"""Words of a generated text; a quarter of them need more than one byte per character."""

_MASK = (1 << 64) - 1
_WORD = re.compile(r"\s*\S+")
_NUM_FOREIGN = 65_536


def encode(text: str) -> tuple[int, ...]:
    """Return the token ids of ``text``: words that the engine writes keep their ids, others get a hash above them."""
    return tuple(token_of(word) for word in _WORD.findall(text))


def decode(token_ids: Iterable[int]) -> str:
    """Return the text of token ids. A word that the engine never writes becomes ``<id>``: its hash has no inverse."""
    words = len(VOCABULARY)
    return " ".join(VOCABULARY[token] if 0 <= token < words else f"<{token}>" for token in token_ids)


_IDS = {word: index for index, word in enumerate(VOCABULARY)}


def token_of(word: str) -> int:
    """Return the id of one word; blanks around it do not count."""
    word = word.strip()
    known = _IDS.get(word)
    if known is not None:
        return known
    return len(VOCABULARY) + int.from_bytes(blake2b(word.encode(), digest_size=4).digest(), "big") % _NUM_FOREIGN


def prompt_digest(token_ids: Iterable[int]) -> int:
    """Return the 64-bit digest of a prompt; equal in every process and on every machine."""
    ids = tuple(token_ids)
    return int.from_bytes(blake2b(struct.pack(f">{len(ids)}q", *ids), digest_size=8).digest(), "big")


def token_at(digest: int, position: int, choice: int = 0) -> int:
    """Return the token id at ``position`` (from 0) from the arguments alone, so that any replica can continue."""
    mixed = (digest + (position + 1) * 0x9E3779B97F4A7C15 + choice * 0xD1B54A32D192ED03) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return (mixed ^ (mixed >> 31)) % len(VOCABULARY)


def ratio_at(digest: int, position: int) -> float:
    """Return a number in [0, 1) that depends on both arguments only."""
    mixed = (digest ^ ((position + 1) * 0xD1B54A32D192ED03)) & _MASK
    mixed = ((mixed ^ (mixed >> 29)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 32)) * 0x94D049BB133111EB) & _MASK
    return (mixed >> 11) / (1 << 53)


def natural_length(digest: int) -> int:
    """Return the length of a response without a limit: 16 to 79 tokens."""
    return 16 + digest % 64


def piece(token_id: int, position: int) -> str:
    """Return the text of a generated token; all but the first begin with a space."""
    word = VOCABULARY[token_id % len(VOCABULARY)]
    return word if position == 0 else " " + word


class StopFilter:
    """A filter that cuts a text in pieces at the first stop string, and never lets out part of one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max((len(stop) for stop in self._stops), default=1)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Return the text that may be sent now. Once ``matched`` is set, nothing more will."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        self._held += text
        found = [(at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            at, self.matched = min(found)
            return self._take(at)
        return self._take(max(0, len(self._held) - self._longest + 1))

    def flush(self) -> str:
        """Return the text that was held back and turned out not to be a stop string."""
        return "" if self.matched is not None else self._take(len(self._held))

    def _take(self, length: int) -> str:
        out, self._held = self._held[:length], self._held[length:]
        return out
