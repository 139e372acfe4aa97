"""Writes signs that a terminal's encoding lacks in ASCII: an arrow as ``->``, and letters as JSON escapes them."""

from __future__ import annotations

import codecs
import io
import sys

__all__ = ("write_every_sign",)

_HANDLER = "longboat-signs"
_REPLACED = frozenset({"strict", "backslashreplace"})
"""What Python does by itself. A user who chose another way gets that."""
_SIGNS = str.maketrans(
    {
        "→": "->",
        "…": "...",
        "·": "-",
        "²": "^2",
        "×": "x",
        "±": "+-",
        "√": "sqrt",
        "σ": "sigma",
        "•": "*",
        **dict.fromkeys("─━═╴╶╸╺–—", "-"),
        **dict.fromkeys("│┃║", "|"),
        **dict.fromkeys("┌┐└┘├┤┬┴┼┏┓┗┛┡┩╇╭╮╰╯", "+"),
        **dict.fromkeys("▌█▏▎▍▋▊▉", "#"),
    }
)


def write_every_sign() -> None:
    """Let stdout and stderr take all text, whatever their encoding is."""
    codecs.register_error(_HANDLER, _in_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in _REPLACED:
            stream.reconfigure(errors=_HANDLER)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_SIGNS)
    return "".join(sign if sign.isascii() else _escaped(sign) for sign in text), error.end


def _escaped(sign: str) -> str:
    """Return the escape that JSON has for a sign: a document stays one."""
    units = sign.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
