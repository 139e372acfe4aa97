"""Reads the extra arguments that a fleet file gives an engine; the last value of a flag counts (vLLM, SGLang, TGI)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from longboat.core.errors import Problem
from longboat.core.plan import EngineMemory

__all__ = (
    "EVERY_RANK",
    "OWN_ADDRESS",
    "OWN_KEY",
    "PLAIN_HTTP",
    "ExtraArguments",
    "is_number",
    "number_in",
    "whole_number",
    "with_types",
)

# what to do instead of setting flags that every engine has
OWN_ADDRESS = "leave it out: the engine listens where the gateway expects it; set the gateway's host and port instead"
OWN_KEY = "leave it out: each engine gets its own secret, which only the gateway knows"
PLAIN_HTTP = "leave it out: the gateway speaks plain HTTP to engines"
EVERY_RANK = "leave it out: Longboat sets it for every rank of the gang"

_PATHS = ("/", ".", "~")
_NUMBER = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")
_BOTH = re.compile(r"(--?[A-Za-z][\w-]*)\s+(\S+)")  # a flag and its value in one word
_WEIGHT_BITS = {"float32": 32, "float": 32, "auto": 0, "half": 0, "float16": 0, "bfloat16": 0}


@dataclass(frozen=True, slots=True)
class ExtraArguments:
    """How one engine reads its command line."""

    spelling: Callable[[str], str | None]  # word → the flag's first name, without ``=value``; None: not a flag
    owner: Callable[[str], str | None]  # flag → the flag in ``owned`` that the engine's parser would take it for
    owned: Mapping[str, str]  # flag that Longboat sets → what to do instead
    units: Mapping[str, int]  # unit that may follow a number → its factor

    def problems(self, args: Sequence[str]) -> tuple[Problem, ...]:
        """Return the mistakes in the user's extra arguments.

        Only flags that Longboat itself sets are refused. The engine decides whether it knows the others.
        """
        problems = []
        if args and not args[0].startswith("-"):
            what = f"{args[0]!r} is not a flag"
            problems.append(Problem(where="[0]", what=what, hint="write flags as --name value or --name=value"))
        for index, flag in self._positions(args):
            if (both := _BOTH.fullmatch(args[index])) and not self._may_be_value(index, args):
                what = f"{args[index]!r} is one word, so the engine finds no flag in it"
                hint = f'write two: {both[1]}, "{both[2]}"'
                problems.append(Problem(where=f"[{index}]", what=what, hint=hint))
            elif owner := self.owner(flag):
                name = args[index].partition("=")[0]
                what = f"{name} is set by Longboat and cannot be given as an extra argument"
                problems.append(Problem(where=f"[{index}]", what=what, hint=self.owned[owner]))
        return tuple(problems)

    def flags(self, args: Sequence[str]) -> frozenset[str]:
        """Return the flags in ``args``, each in one spelling."""
        return frozenset(flag for _, flag in self._positions(args))

    def without_given(self, defaults: Sequence[tuple[str, ...]], extra_args: Sequence[str]) -> list[str]:
        """Flatten ``defaults`` (flag, value …) without the flags that the user gave: the user always wins."""
        given = self.flags(extra_args)
        return [word for words in defaults if words[0] not in given for word in words]

    def values(self, flag: str, args: Sequence[str]) -> Iterator[str]:
        """Yield what ``args`` give for ``flag``, in their order; an empty text where nothing follows it."""
        for index, found in self._positions(args):
            if found == flag:
                _, equals, value = args[index].partition("=")
                yield value if equals else args[index + 1] if index + 1 < len(args) else ""

    def text(self, flag: str, args: Sequence[str]) -> str:
        """Return the text that ``args`` last give for ``flag``; empty where there is none."""
        return next(reversed(list(self.values(flag, args))), "")

    def name_hub(self, flags: Collection[str], args: Sequence[str]) -> bool:
        """Return whether ``args`` give one of ``flags`` the name of something on a hub, and not a path."""
        values = (value for flag in flags for value in self.values(flag, args))
        return any(value and not value.startswith(_PATHS) for value in values)

    def number(self, flag: str, args: Sequence[str]) -> int | None:
        """Return the whole number above 0 that ``args`` last give for ``flag``; None where there is none."""
        return self.number_in(self.text(flag, args)) or None

    def number_in(self, text: str) -> int | None:
        """Return the whole number that the engine reads in ``text``; None where it reads none.

        Powers of ten may follow a decimal fraction (``25.6k``), powers of two may not.
        """
        if (found := _NUMBER.fullmatch(text.strip())) is None:
            return None
        digits, unit = found.groups()
        factor = self.units.get(unit) if unit else 1
        if factor is None or ("." in digits and factor % 10):
            return None
        return int(Decimal(digits) * factor)

    def _may_be_value(self, index: int, args: Sequence[str]) -> bool:
        """Return whether the word before may be a flag that takes a value."""
        before = args[index - 1] if index else ""
        return self.spelling(before) is not None and "=" not in before

    def _positions(self, args: Sequence[str]) -> Iterator[tuple[int, str]]:
        for index, word in enumerate(args):
            if (flag := self.spelling(word)) is not None:
                yield index, flag


def with_types(defaults: EngineMemory, dtype: str, cache: str, cache_bits: Mapping[str, int]) -> EngineMemory:
    """Apply the types of the weights (``--dtype``) and of the cache (``--kv-cache-dtype``) to ``defaults``.

    ``--dtype`` sets the bits of both. Empty: not given. cache_bits: cache's type → bits; 0 is as the weights
    """
    unknown = [f"--dtype {dtype}"] if dtype and dtype not in _WEIGHT_BITS else []
    unknown += [f"--kv-cache-dtype {cache}"] if cache and cache not in cache_bits else []
    weight_bits = _WEIGHT_BITS.get(dtype, 0) if dtype else defaults.weight_bits
    kv_bits = defaults.kv_bits if not dtype else weight_bits or 16
    return replace(
        defaults, weight_bits=weight_bits, kv_bits=cache_bits.get(cache, 0) or kv_bits, unknown=tuple(unknown)
    )


def whole_number(text: str) -> int | None:
    """Return the whole number that ``text`` is, without a unit; None where it is none."""
    return int(text) if re.fullmatch("-?[0-9]+", text) else None


def is_number(text: str) -> bool:
    """Return whether ``text`` is a number, such as a negative one that looks like a flag."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def number_in(text: str) -> float:
    """Return the number in ``text``; 0 where there is none, or one without an end."""
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0
