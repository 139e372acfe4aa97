"""Opens the trace that a run plays, as often as it is played."""

from __future__ import annotations

from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from longboat.catalog.names import nearest_names
from longboat.cli.simulate.simulate_options import SimulateRequest
from longboat.core.errors import UserInputError
from longboat.simulator.traces.formats import reader_for
from longboat.simulator.traces.sessions import PREFIX, generate_sessions, parse_sessions
from longboat.simulator.traces.shaping import shaped
from longboat.simulator.traces.trace_request import TraceRequest

__all__ = ("trace_to_play",)

_ENCODING = "utf-8-sig"  # some editors write a byte order mark
_GZIP = b"\x1f\x8b"


def trace_to_play(request: SimulateRequest) -> Callable[[], Iterator[TraceRequest]]:
    """Return what yields the requests of the trace, from its first one each time. Raises UserInputError."""
    read = _reader(request)

    def play() -> Iterator[TraceRequest]:
        return shaped(
            read,
            rate_scale=request.rate_scale,
            requests=request.requests,
            jitter_s=request.jitter_s,
            seed=request.seed,
        )

    return play


def _reader(request: SimulateRequest) -> Callable[[int], Iterator[TraceRequest]]:
    if request.trace.startswith(PREFIX):
        load = parse_sessions(request.trace)
        return lambda turn: generate_sessions(load, request.seed + (turn << 32))
    path = Path(request.trace)
    reader = reader_for(_first_line(path), str(path))

    def read(turn: int) -> Iterator[TraceRequest]:
        try:
            with path.open(encoding=_ENCODING) as lines:
                requests = reader(lines, str(path), turn)
                first = next(requests, None)
                if first is None:
                    raise UserInputError(f"{path} has no requests", hint="add a line for each request below its header")
                yield first
                yield from requests
        except (OSError, UnicodeDecodeError) as error:
            raise _unreadable(path, error) from None

    return read


def _first_line(path: Path) -> str:
    try:
        with path.open(encoding=_ENCODING) as lines:
            return next((line for line in lines if line.strip()), "")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError | UnicodeDecodeError) -> UserInputError:
    if isinstance(error, UnicodeDecodeError):
        return UserInputError(f"{path}:{_undecodable_line(path)}: not text in UTF-8", hint=_hint(path))
    return UserInputError(f"--trace {path} cannot be read: {error.strerror}", hint=_hint(path))


def _undecodable_line(path: Path) -> int:
    """Return the number of the first line that is not UTF-8."""
    with suppress(OSError), path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                line.decode()
            except UnicodeDecodeError:
                return number
    return 1


def _hint(path: Path) -> str:
    if path.is_file():
        with suppress(OSError), path.open("rb") as file:
            begin = file.read(2)
            if begin == _GZIP:
                return f"it is compressed: gzip -dc {path} > trace, and give that"
            if begin in (BOM_UTF16_LE, BOM_UTF16_BE):
                return f"it is UTF-16: iconv -f UTF-16 -t UTF-8 {path} > trace, and give that"
        return "a trace is lines of text: JSON objects or CSV"
    names = [one.name for one in path.parent.iterdir() if one.is_file()] if path.parent.is_dir() else []
    near = nearest_names(path.name, names)
    return f"did you mean {path.parent / near[0]}?" if near else "give a trace file, or sessions:rate=4,turns=6"
