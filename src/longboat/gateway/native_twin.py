"""The Python twins of the C extension: what the gateway runs where it could not be compiled."""

from __future__ import annotations

__all__ = ("scan",)


def scan(body: bytes, completions: bool, keyed: bool, /) -> None:
    """Knows nothing of any body: ``body.read_facts`` is what reads it."""
