"""Gives SGLang's parsers of tool calls their text in the same blocks, however it arrives.

SGLang's parsers send what two successive looks at a call's arguments agree on. So how much a client has after a token
would depend on which tokens a busy engine sent together, and a client that comes back to such a stream at a token would
lose words, or get some twice. Blocks begin where the text first holds a call; text before it passes at once.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_left
from typing import Any, Final

from longboat_vllm.shapes import expect_parameters

__all__ = ("BLOCK_CHARS", "Blocks", "install")

BLOCK_CHARS: Final = 4
"""About a token's worth, so that the parser is asked about as often as without blocks."""
GROWTH: Final = 256
"""A look reads the whole call again, so blocks of plain words grow with what comes before them: by this part of it."""
MOST_CHARS: Final = 256
NEAR_CHARS: Final = 256
"""Longer than the words with which calls begin, between which spaces may be. A look for them reads no more text."""
_MARK = "_longboat_blocks"
_SPECIAL: Final = r"<[^\s<>]{1,40}>|\[[A-Z_]{3,20}\]"
"""What may be a special token, of which parsers never get a part."""
_OPEN: Final = re.compile(r"(?:<[^\s<>]{0,40}|\[[A-Z_]{0,20})\Z")
"""What may become one."""
_RUN: Final = re.compile(rf"{_SPECIAL}|[<\[]|[^<\[]+")


@functools.cache
def _block(most: int) -> re.Pattern[str]:
    """Return the pattern of a block; what may be a call's structure is looked at in blocks of the usual size."""
    return re.compile(rf"{_SPECIAL}|[<\[]|[^<\[]{{1,{BLOCK_CHARS}}}[^<\[\]{{}}()\"\\]{{0,{most - BLOCK_CHARS}}}")


class Blocks:
    """Divides the text of one choice for its parser, the same way however the text arrives."""

    def __init__(self) -> None:
        self._rest = ""  # what the parser has not got yet
        self._before = ""  # what it has got, as far as a call may begin there
        self._in_call = False
        self._num_chars = 0  # of the call, that it has got

    def divide(self, text: str, detector: Any) -> list[str]:
        """Return the pieces that the parser gets now. detector: SGLang's, which knows where a call begins."""
        text, start, pieces = self._rest + text, 0, list[str]()
        while start < len(text) and not _OPEN.match(text, start):
            most = min(max(BLOCK_CHARS, self._num_chars // GROWTH), MOST_CHARS)
            found = (_block(most) if self._in_call else _RUN).match(text, start)
            assert found is not None
            piece = found[0]
            if self._in_call:
                if found.end() == len(text) and len(piece) < most and piece[0] not in "<[":
                    break  # it may grow
                self._num_chars += len(piece)
            elif detector.has_tool_call(self._before + piece):
                self._in_call = True
                piece = self._up_to_call(piece, detector)
            else:
                self._before = _kept(self._before + piece)
            pieces.append(piece)
            start += len(piece)
        self._rest = text[start:]
        return pieces

    def rest(self) -> str:
        """Return the text that the parser lacks at the end of the stream."""
        rest, self._rest = self._rest, ""
        return rest

    def _up_to_call(self, piece: str, detector: Any) -> str:
        """Return the shortest beginning of the piece with which the whole text holds a call."""
        ends = range(1, len(piece))
        return piece[: bisect_left(ends, True, key=lambda end: detector.has_tool_call(self._before + piece[:end])) + 1]


def _kept(text: str) -> str:
    """Return the part of a text in which a parser may find a call later: its first character, and its end."""
    return text if len(text) <= 2 * NEAR_CHARS else f"{text[0]}\0{text[-NEAR_CHARS:]}"


def install() -> None:
    """Wrap both kinds of parsers. Raises UnexpectedShapeError."""
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.function_call.json_array_parser import JsonArrayParser

    if hasattr(FunctionCallParser.parse_stream_chunk, _MARK):
        return
    expect_parameters(FunctionCallParser.parse_stream_chunk, ("self", "chunk_text"))
    expect_parameters(FunctionCallParser.parse_stream_end, ("self",))
    expect_parameters(JsonArrayParser.parse_streaming_increment, ("self", "new_text", "tools"))
    expect_parameters(JsonArrayParser.finish, ("self", "tools"))
    chunk, increment = FunctionCallParser.parse_stream_chunk, JsonArrayParser.parse_streaming_increment
    FunctionCallParser.parse_stream_chunk = _chunks(chunk)
    FunctionCallParser.parse_stream_end = _chunk_end(chunk, FunctionCallParser.parse_stream_end)
    JsonArrayParser.parse_streaming_increment = _increments(increment)
    JsonArrayParser.finish = _finish(increment, JsonArrayParser.finish)


def _blocks_of(parser: Any) -> Blocks:
    blocks = getattr(parser, _MARK, None)
    if blocks is None:
        blocks = Blocks()
        setattr(parser, _MARK, blocks)
    return blocks


def _chunks(parse: Any) -> Any:
    """Wrap ``FunctionCallParser.parse_stream_chunk``, which parses in the format of the model."""

    @functools.wraps(parse)
    def parse_blocks(parser: Any, chunk_text: str) -> tuple[str, list[Any]]:
        pieces = _blocks_of(parser).divide(chunk_text, parser.detector) if parser.tools else [chunk_text]
        return _joined(parse(parser, piece) for piece in pieces)

    setattr(parse_blocks, _MARK, True)
    return parse_blocks


def _chunk_end(parse: Any, end: Any) -> Any:
    """Wrap ``FunctionCallParser.parse_stream_end``."""

    @functools.wraps(end)
    def parse_rest(parser: Any) -> tuple[str, list[Any]]:
        rest = _blocks_of(parser).rest()
        return _joined((*([parse(parser, rest)] if rest else []), end(parser)))

    return parse_rest


def _increments(parse: Any) -> Any:
    """Wrap ``JsonArrayParser.parse_streaming_increment``, which parses a list of calls that a grammar demands.

    Each look finds one name or one piece of arguments, so a block is looked at until it brings nothing more. Without
    new text, SGLang asks for what more looks bring.
    """

    @functools.wraps(parse)
    def parse_blocks(parser: Any, new_text: str, tools: Any) -> Any:
        if not new_text:
            return parse(parser, "", tools)
        pieces = _blocks_of(parser).divide(new_text, parser)
        return _result(parser, parse, pieces, tools)

    return parse_blocks


def _finish(parse: Any, finish: Any) -> Any:
    """Wrap ``JsonArrayParser.finish``."""

    @functools.wraps(finish)
    def finish_blocks(parser: Any, tools: Any) -> Any:
        rest = _blocks_of(parser).rest()
        result = _result(parser, parse, [rest] if rest else [], tools)
        end = finish(parser, tools)
        end.normal_text, end.calls = _joined(((result.normal_text, result.calls), (end.normal_text, end.calls)))
        return end

    return finish_blocks


def _result(parser: Any, parse: Any, pieces: list[str], tools: Any) -> Any:
    from sglang.srt.function_call.core_types import StreamingParseResult

    found = []
    for piece in pieces:
        result = parse(parser, piece, tools)
        found.append((result.normal_text, result.calls))
        while result.calls:
            result = parse(parser, "", tools)
            found.append((result.normal_text, result.calls))
    text, calls = _joined(found)
    return StreamingParseResult(normal_text=text, calls=calls)


def _joined(results: Any) -> tuple[str, list[Any]]:
    """Join what several looks found; arguments that follow each other in one call become one piece."""
    words, calls = "", list[Any]()
    for text, found in results:
        words += text or ""
        for call in found:
            if calls and not call.name and calls[-1].tool_index == call.tool_index and not calls[-1].name:
                calls[-1] = calls[-1].model_copy(update={"parameters": calls[-1].parameters + call.parameters})
            else:
                calls.append(call)
    return words, calls
