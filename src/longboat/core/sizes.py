"""Amounts of memory as people write them (``4GiB``)."""

from __future__ import annotations

import re

__all__ = ("MAX_SIZE_BYTES", "canonical_size", "readable_size", "size_bytes")

UNITS = {"B": 1} | {
    f"{letter}{kind}": base ** (power + 1)
    for power, letter in enumerate("KMGT")
    for kind, base in (("B", 1000), ("iB", 1024))
}
BINARY = ("TiB", "GiB", "MiB", "KiB")
PATTERN = re.compile(r"(\d{1,12}(?:\.\d{1,6})?) ?(" + "|".join(UNITS) + ")")
MAX_SIZE_BYTES = 1024 * UNITS["TiB"]


def size_bytes(text: str) -> int:
    """Return the bytes of an amount with its unit.

    Raises ValueError for text without a known unit (``4G``, ``4``), and for more than 1024 TiB.
    """
    match = PATTERN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an amount with a unit")
    number, unit = match.groups()
    amount: int = round(float(number) * UNITS[unit])
    if not 0 < amount <= MAX_SIZE_BYTES:
        raise ValueError(f"{text!r} is not between 1B and 1024TiB")
    return amount


def canonical_size(amount_bytes: int) -> str:
    """Write an amount in the shortest exact way, so that ``4GiB`` and ``4096MiB`` compare as equal."""
    for unit in BINARY:
        if amount_bytes % UNITS[unit] == 0:
            return f"{amount_bytes // UNITS[unit]}{unit}"
    return f"{amount_bytes}B"


def readable_size(amount_bytes: int) -> str:
    """Return an amount as people read it, with at most two decimals: ``23.54GiB``."""
    unit = next((unit for unit in BINARY if amount_bytes >= UNITS[unit]), "B")
    return f"{round(amount_bytes / UNITS[unit], 2):.12g}{unit}"
