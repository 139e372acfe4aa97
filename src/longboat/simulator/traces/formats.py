"""Tells the formats of trace files apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from longboat.core.errors import UserInputError
from longboat.simulator.traces.azure import COLUMNS, read_azure
from longboat.simulator.traces.mooncake import read_mooncake
from longboat.simulator.traces.recorded import read_recorded
from longboat.simulator.traces.trace_request import TraceRequest

__all__ = ("Reader", "reader_for")

Reader = Callable[[Iterable[str], str, int], Iterator[TraceRequest]]


def reader_for(first_line: str, name: str) -> Reader:
    """Return what reads a file, by its first line that is not empty. Raises UserInputError where nothing does."""
    if not first_line:
        raise UserInputError(f"{name} is empty", hint=_FORMATS)
    if all(column in first_line for column in COLUMNS):
        return read_azure
    if first_line.lstrip().startswith("{"):
        return read_mooncake if '"hash_ids"' in first_line or '"input_length"' in first_line else read_recorded
    raise UserInputError(f"{name}:1: {first_line[:60]!r} begins no known trace", hint=_FORMATS)


_FORMATS = (
    "traces are Mooncake's JSON lines, Azure's CSV, what `--record` of a gateway writes, or sessions:rate=4,turns=6"
)
