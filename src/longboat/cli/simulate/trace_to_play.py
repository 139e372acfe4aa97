"""Opens the trace that a run plays, as often as it is played."""

from __future__ import annotations

from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter
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

__all__ = ("TraceToPlay",)

_ENCODING = "utf-8-sig"  # some editors write a byte order mark
_GZIP = b"\x1f\x8b"


class TraceToPlay:
    """The requests of one model in a trace; the file is opened each time that it is played."""

    def __init__(self, request: SimulateRequest, model: str) -> None:
        """Raise UserInputError where the trace cannot be read. model: rows that name another one are left out"""
        self.others: Counter[str] = Counter()  # requests of other models in the newest play, by the model's name
        self._request = request
        self._model = model
        self._read = _sessions(request) if request.trace.startswith(PREFIX) else _reader(Path(request.trace))

    def play(self) -> Iterator[TraceRequest]:
        """Return what yields the requests, from the first one each time."""
        self.others.clear()
        request = self._request
        return shaped(
            self._requests,
            rate_scale=request.rate_scale,
            requests=request.requests,
            jitter_s=request.jitter_s,
            seed=request.seed,
        )

    def _requests(self, turn: int) -> Iterator[TraceRequest]:
        found = False
        for one in self._read(turn):
            if one.model in ("", self._model):
                found = True
                yield one
            else:
                self.others[one.model] += 1
        if not found:
            raise UserInputError(
                f"{self._request.trace} has no request of {self._model}: all are of {', '.join(sorted(self.others))}",
                hint="give --model, or take the field model out of its lines: then any model plays them",
            )


def _sessions(request: SimulateRequest) -> Callable[[int], Iterator[TraceRequest]]:
    load = parse_sessions(request.trace)
    hint = f"give more hours, a higher rate, or a longest far above the system prompt's {load.system} tokens"
    return lambda turn: _some(generate_sessions(load, request.seed + (turn << 32)), request.trace, hint)


def _reader(path: Path) -> Callable[[int], Iterator[TraceRequest]]:
    reader = reader_for(_first_line(path), str(path))

    def read(turn: int) -> Iterator[TraceRequest]:
        try:
            with path.open(encoding=_ENCODING) as lines:
                yield from _some(
                    reader(lines, str(path), turn), str(path), "add a line for each request below its header"
                )
        except (OSError, UnicodeDecodeError) as error:
            raise _unreadable(path, error) from None

    return read


def _some(requests: Iterator[TraceRequest], name: str, hint: str) -> Iterator[TraceRequest]:
    """Pass requests on. Raises UserInputError where there are none."""
    first = next(requests, None)
    if first is None:
        raise UserInputError(f"{name} has no requests", hint=hint)
    yield first
    yield from requests


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
