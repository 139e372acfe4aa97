"""Reads traces as Azure published them: CSV with a time and two counts of tokens. Their prompts share no prefixes."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import lru_cache

from longboat.simulator.traces.block_names import chained_names, even_ends
from longboat.simulator.traces.trace_error import MAX_TOKENS, LineReader
from longboat.simulator.traces.trace_request import TraceRequest

__all__ = ("COLUMNS", "read_azure")

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_EXPECTED = f"a trace of Azure is CSV with the columns {', '.join(COLUMNS)}, sorted by time"
_BLOCK_TOKENS = 512
_MOST_DIGITS = 40  # of a count, with blanks: Python refuses to read numbers of thousands of digits
_EPOCH = datetime(1970, 1, 1)


def read_azure(lines: Iterable[str], name: str, salt: int = 0) -> Iterator[TraceRequest]:
    """Read requests; arguments as for ``read_mooncake``. Each prompt has blocks of its own, as it would have there."""
    at = LineReader(name, _EXPECTED)
    rows = _rows(lines, at)
    header = next(rows, [])
    if missing := [column for column in COLUMNS if column not in header]:
        raise at.error(f"these columns are missing: {', '.join(missing)}")
    time_at, context_at, generated_at = (header.index(column) for column in COLUMNS)
    for row in rows:
        row.extend([""] * (len(header) - len(row)))
        at_s = at.since_start(_time_s(row[time_at], at))
        tokens = _count(row[context_at], COLUMNS[1], at)
        yield _request(at_s, tokens, _count(row[generated_at], COLUMNS[2], at), at.line, salt)


def _rows(lines: Iterable[str], at: LineReader) -> Iterator[list[str]]:
    """Yield the fields of each line, and leave its number in ``at``; empty lines are passed over."""
    at.line = 1
    rows = csv.reader(map(at.look, lines))
    try:
        for row in rows:
            at.line = rows.line_num
            if row:
                yield row
    except csv.Error as error:
        at.line = rows.line_num
        raise at.error(f"not CSV ({error}){at.cut}") from None


def _request(at_s: float, tokens: int, output_tokens: int, line: int, salt: int) -> TraceRequest:
    blocks = range(line << 20, (line << 20) + -(-tokens // _BLOCK_TOKENS))
    names, ends = chained_names(blocks, salt), even_ends(tokens, _BLOCK_TOKENS)
    return TraceRequest(at_s, tokens, output_tokens, blocks=names, ends=ends)


def _count(text: str, field: str, at: LineReader) -> int:
    if not text:
        raise at.error(f"{field} is missing: the line is cut off")
    if not text.strip().isdecimal() or len(text) > _MOST_DIGITS or int(text) > MAX_TOKENS:
        raise at.error(f"{field} is {text[:40]!r}, and must be a whole number from 0 to {MAX_TOKENS}{at.cut}")
    return max(1, int(text))


def _time_s(text: str, at: LineReader) -> float:
    """Return seconds of a time with up to seven digits after the second."""
    whole, _, part = text.strip().partition(".")
    try:
        return _whole_s(whole) + (float(f"0.{part.removesuffix('Z').partition('+')[0]}") if part else 0.0)
    except ValueError:
        raise at.error(f"TIMESTAMP is {text[:40]!r}, and must be a time like 2023-11-16 18:15:46.68{at.cut}") from None


@lru_cache(maxsize=1)
def _whole_s(text: str) -> float:
    """Return a time without parts of a second; consecutive rows often have the same."""
    return (datetime.fromisoformat(text).replace(tzinfo=None) - _EPOCH).total_seconds()
