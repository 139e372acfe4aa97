"""Reads what a gateway recorded: sizes, times and salted hashes, one JSON object on each line.

time_s: when the request came, by any clock
prompt_tokens, output_tokens: counted by the engine
max_tokens: the client's limit, where it set one
model, tenant, session: names; tenant and session are salted hashes, and may be left out
blocks: names of the prompt's blocks as in ``Prompt.blocks``, in base64
ends: where each block ends, in a unit of its own; the last one ends the prompt
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence

from longboat.routing.prefixes.prompt import BLOCK_BYTES, masked
from longboat.simulator.traces.json_rows import json_rows
from longboat.simulator.traces.trace_error import LineReader
from longboat.simulator.traces.trace_request import TraceRequest

__all__ = ("read_recorded",)

_EXPECTED = "each line of a recorded trace is a JSON object with time_s, prompt_tokens, output_tokens, blocks and ends"


def read_recorded(lines: Iterable[str], name: str, salt: int = 0) -> Iterator[TraceRequest]:
    """Read requests; arguments as for ``read_mooncake``."""
    at = LineReader(name, _EXPECTED)
    for row in json_rows(lines, at):
        yield _request(row, at, salt)


def _request(row: Mapping[str, object], at: LineReader, salt: int) -> TraceRequest:
    tokens = at.count(row, "prompt_tokens", least=1)
    blocks = _salted(_blocks(row, at), salt)
    limit = at.count(row, "max_tokens", least=1) if row.get("max_tokens") is not None else None
    return TraceRequest(
        at.seconds(row, "time_s", 1.0),
        tokens,
        max(1, at.count(row, "output_tokens", least=0)),
        blocks=blocks,
        ends=_ends(row, at, len(blocks) // BLOCK_BYTES, tokens),
        model=_text(row, "model", at),
        tenant=_text(row, "tenant", at),
        session=_text(row, "session", at),
        max_tokens=limit,
    )


def _blocks(row: Mapping[str, object], at: LineReader) -> bytes:
    text = _text(row, "blocks", at)
    try:
        names = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise at.error("blocks are not base64") from None
    if len(names) % BLOCK_BYTES:
        raise at.error(f"blocks are {len(names)} bytes, and must be a multiple of {BLOCK_BYTES}")
    return names


def _ends(row: Mapping[str, object], at: LineReader, blocks: int, tokens: int) -> Sequence[int]:
    """Return the ends in tokens."""
    ends = row.get("ends", [])
    if not isinstance(ends, list) or len(ends) != blocks or not all(isinstance(end, int) for end in ends):
        raise at.error(f"ends must be a list of {blocks} whole numbers, one for each block")
    if any(end <= before for before, end in zip([0, *ends], ends, strict=False)):
        raise at.error("ends must grow from block to block, and begin above 0")
    return [tokens * end // ends[-1] for end in ends]


def _salted(names: bytes, salt: int) -> bytes:
    mask = (salt * 0x9E3779B97F4A7C15) & ((1 << 64) - 1)
    return masked(names, mask.to_bytes(BLOCK_BYTES, "little")) if salt else names


def _text(row: Mapping[str, object], field: str, at: LineReader) -> str:
    value = row.get(field, "")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise at.error(f"{field} must be a text")
    return value
