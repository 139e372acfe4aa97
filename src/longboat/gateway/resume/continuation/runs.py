"""Reads many events at once: those that differ in one piece of text and their place in the stream are one event.

Most of a stream is such runs. Beginnings and ends that many events share are replaced by one control byte each (JSON
has none of those as they are), and one pattern reads what is left: all in C, well under a microsecond per event.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from longboat.gateway.resume.continuation.parts import Event, event_of, events_of

__all__ = ("condensed",)

_FEW = 8
_MAX_SHAPES = 6
_STARTS, _ENDS, _TAILS = 0x00, 0x10, 0x18
_CONTROL = bytes(range(0x0A)) + bytes(range(0x0B, 0x20))
_TEXT = re.compile(rb'"(?:content|text|reasoning|reasoning_content|arguments|delta|thinking|partial_json)":"')
_STRING_END = re.compile(rb'(?:[^"\\]|\\.)*(")')
_LIST = re.compile(rb'"(?!choices"|tool_calls")[^"]*": ?\[(?!\])')
_SEQUENCE = re.compile(rb'"sequence_number":(?=\d)')
_EVENT = re.compile(
    rb"(?:: ids (\d+) ([\d,]+)\n)?id: ([\d.]+)\n([\x00-\x05])([^\x10-\x15\n]*)([\x10-\x15])(?:(\d+)([\x18-\x1d]))?\n\n"
)
_CHOICE, _IDS, _POSITION, _START, _PIECE, _END, _NUMBER, _TAIL, _STEP = range(1, 10)


class _Shape(NamedTuple):
    """What events have in common. tail: what follows the sequence number after ``end``; b"" where there is none"""

    start: bytes
    end: bytes
    tail: bytes


def condensed(block: bytes) -> Iterator[Event]:
    """What the events of a block tell, in fewer events; those of one shape and run become one.

    :raises StitchError: a line that engines write for the gateway is torn
    """
    shapes = _shapes(block)
    if not shapes or len(block.translate(None, _CONTROL)) < len(block):
        return events_of(block)
    parts = _EVENT.split(_marked(block, shapes))
    return _events(shapes, parts) if _is_right(shapes, parts) else events_of(block)


def _shapes(block: bytes) -> list[_Shape]:
    """Those that several have of a few events from three places of the block."""
    events = block.split(b"\n\n")
    if len(events) <= _FEW:
        return []
    places = (len(events) * quarter // 4 + number for quarter in (1, 2, 3) for number in range(_FEW))
    found = Counter(_shape_of(events[place]) for place in set(places) if place < len(events))
    return [shape for shape, count in found.most_common(_MAX_SHAPES) if shape is not None and count > 1]


def _gaps(parts: list[bytes | None]) -> list[bytes]:
    return [gap or b"" for gap in parts[::_STEP]]


def _shape_of(raw: bytes) -> _Shape | None:
    """The shape of one event; None if it has another than one piece of text."""
    _, line, rest = raw.partition(b"id: ")
    rest = rest.partition(b"\n")[2]
    texts = list(_TEXT.finditer(rest))
    if not line or len(texts) != 1:
        return None
    string = _STRING_END.match(rest, texts[0].end())
    if string is None:
        return None
    start, end = rest[: texts[0].end()], rest[string.start(1) :]
    if _LIST.search(end) or _LIST.search(start):  # each event's entries count, also where two events have the same
        return None
    number = _SEQUENCE.search(end)
    if number is None:
        return _Shape(start, end, b"")
    return _Shape(start, end[: number.end()], end[number.end() :].lstrip(b"0123456789"))


def _tables(shapes: list[_Shape]) -> list[tuple[int, list[bytes]]]:
    """Marks begin at a number, and stand for these bytes in order."""
    columns = [list(dict.fromkeys(column)) for column in zip(*shapes, strict=True)]
    return list(zip((_STARTS, _ENDS, _TAILS), columns, strict=False))


def _marked(block: bytes, shapes: list[_Shape]) -> bytes:
    starts, ends, tails = _tables(shapes)
    for mark, start in enumerate(starts[1], starts[0]):
        block = block.replace(b"\n" + start, b"\n%c" % mark)
    for mark, tail in enumerate(tails[1], tails[0]):
        block = block.replace(tail + b"\n\n", b"%c\n\n" % mark) if tail else block
    for mark, end in enumerate(ends[1], ends[0]):
        block = block.replace(end, b"%c" % mark)
    return block


def _unmarked(block: bytes, shapes: list[_Shape]) -> bytes:
    for first, column in _tables(shapes):
        for mark, value in enumerate(column, first):
            block = block.replace(b"%c" % mark, value)
    return block


def _is_right(shapes: list[_Shape], parts: list[bytes | None]) -> bool:
    """Whether each event has start and end of one shape, and nothing but one string between them."""
    (_, starts), (_, ends), (_, tails) = _tables(shapes)
    known = {(starts.index(s), _ENDS + ends.index(e), _TAILS + tails.index(t) if t else None) for s, e, t in shapes}
    found = {
        (start[0], end[0], tail[0] if tail else None)
        for start, end, tail in set(zip(*(parts[column::_STEP] for column in (_START, _END, _TAIL)), strict=True))
        if start and end
    }
    text = b"".join(part or b"" for part in parts[_PIECE::_STEP])
    return found <= known and b'"' not in text.replace(b"\\\\", b"").replace(b'\\"', b"")


def _events(shapes: list[_Shape], parts: list[bytes | None]) -> Iterator[Event]:
    gaps = _gaps(parts)
    first = 0
    for at in (*(number for number, gap in enumerate(gaps) if gap), len(gaps) - 1):
        if at > first:
            yield from _run(shapes, parts[_STEP * first : _STEP * at])
        if gaps[at]:
            yield from events_of(_unmarked(gaps[at], shapes))
        first, gaps[at] = at, b""


def _run(shapes: list[_Shape], parts: list[bytes | None]) -> Iterator[Event]:
    """One event for each shape of a run; the first of them tells all ids."""
    pieces = parts[_PIECE::_STEP]
    kinds = list(zip(parts[_START::_STEP], parts[_END::_STEP], parts[_TAIL::_STEP], strict=True))
    ids = _ids(parts)
    for kind in dict.fromkeys(kinds):
        mine = [at for at, other in enumerate(kinds) if other == kind]
        last = parts[_STEP * mine[-1] : _STEP * mine[-1] + _STEP]
        joined = pieces if len(mine) == len(kinds) else [pieces[at] for at in mine]
        text = b"".join(piece or b"" for piece in joined)
        marked = (kind[0], b"\x1f", kind[1], last[_NUMBER], kind[2])
        lines = _unmarked(b"".join(part or b"" for part in marked), shapes).replace(b"\x1f", text)
        yield event_of(b"id: %b\n%b" % (last[_POSITION] or b"", lines))._replace(ids=ids)
        ids = ()


def _ids(parts: list[bytes | None]) -> tuple[tuple[int, list[int]], ...]:
    choices, ids = parts[_CHOICE::_STEP], parts[_IDS::_STEP]
    found = []
    for choice in dict.fromkeys(choices):
        if choice is not None:
            told = ids if choices.count(choice) == len(ids) else [ids[i] for i, c in enumerate(choices) if c == choice]
            found.append((int(choice), [int(one) for one in b",".join(one or b"" for one in told).split(b",")]))
    return tuple(found)
