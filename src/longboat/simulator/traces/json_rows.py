"""Reads lines of JSON objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import orjson

from longboat.simulator.traces.trace_error import LineReader

__all__ = ("json_rows",)


def json_rows(lines: Iterable[str], at: LineReader) -> Iterator[Mapping[str, object]]:
    """Yield the object of each line, and leave the line's number in ``at``; empty lines are passed over."""
    for number, line in enumerate(lines, 1):
        at.line = number
        if not line.strip():
            continue
        try:
            row = orjson.loads(at.look(line))
        except orjson.JSONDecodeError as error:
            raise at.error(f"not JSON ({error}){at.cut}") from None
        if not isinstance(row, dict):
            raise at.error(f"a JSON {type(row).__name__}, and not an object")
        yield row
