"""Reads traces as Azure published them: CSV with a time and two counts of tokens. Their prompts share no prefixes."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from longboat.simulator.traces.block_names import chained_names, even_ends
from longboat.simulator.traces.trace_error import LineReader
from longboat.simulator.traces.trace_request import TraceRequest

__all__ = ("COLUMNS", "read_azure")

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_EXPECTED = f"a trace of Azure is CSV with the columns {', '.join(COLUMNS)}, sorted by time"
_BLOCK_TOKENS = 512
_EPOCH = datetime(1970, 1, 1)


def read_azure(lines: Iterable[str], name: str, salt: int = 0) -> Iterator[TraceRequest]:
    """Read requests; arguments as for ``read_mooncake``. Each prompt has blocks of its own, as it would have there."""
    at = LineReader(name, _EXPECTED)
    rows = csv.DictReader(lines)
    at.line = 1
    if missing := [column for column in COLUMNS if column not in (rows.fieldnames or ())]:
        raise at.error(f"these columns are missing: {', '.join(missing)}")
    for row in rows:
        at.line = rows.line_num
        yield _request(row, at, salt)


def _request(row: Mapping[str, str | None], at: LineReader, salt: int) -> TraceRequest:
    tokens = _count(row, "ContextTokens", at)
    blocks = range(-(-tokens // _BLOCK_TOKENS))
    return TraceRequest(
        at.since_start(_time_s(row["TIMESTAMP"] or "", at)),
        tokens,
        _count(row, "GeneratedTokens", at),
        blocks=chained_names((at.line << 20 | block for block in blocks), salt),
        ends=even_ends(tokens, _BLOCK_TOKENS),
    )


def _count(row: Mapping[str, str | None], field: str, at: LineReader) -> int:
    text = row[field]
    if text is None:
        raise at.error(f"{field} is missing: the line is cut off")
    if not text.strip().isdecimal():
        raise at.error(f"{field} is {text[:40]!r}, and must be a whole number")
    return max(1, at.count({field: int(text)}, field, least=0))


def _time_s(text: str, at: LineReader) -> float:
    """Return seconds of a time with up to seven digits after the second."""
    whole, _, part = text.strip().partition(".")
    try:
        started = (datetime.fromisoformat(whole).replace(tzinfo=None) - _EPOCH).total_seconds()
        return started + (float(f"0.{part.removesuffix('Z').partition('+')[0]}") if part else 0.0)
    except ValueError:
        raise at.error(f"TIMESTAMP is {text[:40]!r}, and must be a time like 2023-11-16 18:15:46.68") from None
