"""Reads traces as Mooncake published them: JSON lines with the hashes of blocks of 512 tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from longboat.simulator.traces.block_names import chained_names, even_ends
from longboat.simulator.traces.json_rows import json_rows
from longboat.simulator.traces.trace_error import LineReader
from longboat.simulator.traces.trace_request import TraceRequest

__all__ = ("read_mooncake",)

_BLOCK_TOKENS = 512
_EXPECTED = "each line of a Mooncake trace is a JSON object with timestamp (ms), input_length, output_length, hash_ids"


def read_mooncake(lines: Iterable[str], name: str, salt: int = 0) -> Iterator[TraceRequest]:
    """Read requests.

    name: of the file, for errors
    salt: prompts that were read with another one share nothing with these
    """
    at = LineReader(name, _EXPECTED)
    for row in json_rows(lines, at):
        yield _request(row, at, salt)


def _request(row: Mapping[str, object], at: LineReader, salt: int) -> TraceRequest:
    tokens = at.count(row, "input_length", least=1)
    ids = at.present(row, "hash_ids")
    if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
        raise at.error("hash_ids must be a list of whole numbers")
    needed = -(-tokens // _BLOCK_TOKENS)
    if len(ids) != needed:
        raise at.error(f"{tokens} tokens are {needed} blocks of {_BLOCK_TOKENS}, and there are {len(ids)} hash_ids")
    return TraceRequest(
        at.seconds(row, "timestamp", 1e-3),
        tokens,
        max(1, at.count(row, "output_length", least=0)),
        blocks=chained_names(ids, salt),
        ends=even_ends(tokens, _BLOCK_TOKENS),
    )
