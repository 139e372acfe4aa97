"""Reads traces as Mooncake published them: JSON lines with the hashes of blocks of 512 tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import orjson

from longboat.core.errors import UserInputError
from longboat.simulator.traces.block_names import chained_names, even_ends
from longboat.simulator.traces.trace_request import TraceRequest

__all__ = ("BLOCK_TOKENS", "read_mooncake")

BLOCK_TOKENS = 512


def read_mooncake(lines: Iterable[str], name: str, salt: int = 0) -> Iterator[TraceRequest]:
    """Read requests. name: of the file, for errors"""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
            yield _request(row, salt)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise UserInputError(
                f"{name}, line {number}: {error!r}", hint="a line is a JSON object with timestamp (ms), input_length, "
                "output_length and hash_ids",
            ) from error  # fmt: skip


def _request(row: dict[str, object], salt: int) -> TraceRequest:
    tokens, ids = row["input_length"], row["hash_ids"]
    assert isinstance(tokens, int) and isinstance(ids, list)
    ends = even_ends(tokens, BLOCK_TOKENS)
    if len(ends) != len(ids):
        raise ValueError(f"{tokens} tokens are {len(ends)} blocks of {BLOCK_TOKENS}, and there are {len(ids)} hash_ids")
    return TraceRequest(
        row["timestamp"] / 1000.0,
        tokens,
        max(1, row["output_length"]),
        blocks=chained_names(ids, salt),
        ends=ends,
    )
