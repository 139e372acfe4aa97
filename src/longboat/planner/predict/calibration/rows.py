"""Measured rows: the CSV form that calibration and evaluation read.

Columns: ``model,hardware,engine,quantization,tensor,pipeline,concurrency,prompt_tokens,output_tokens,ttft_ms,itl_ms``,
and where they matter ``attention_data,expert,link,hop,spread,poll_steps``. The columns of aiconfigurator's
``silicon_sample.csv`` are understood too (``silicon``). docs/concepts/prediction.md describes both.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO

from longboat.core.errors import Problem, UserInputError
from longboat.planner.predict.calibration.silicon import (
    SILICON_NAMES,
    is_repeated,
    is_silicon,
    poll_steps_of,
    spread_of,
)

__all__ = ("COLUMNS", "Row", "read_lines", "read_rows")

COLUMNS = (
    "model",
    "hardware",
    "engine",
    "quantization",
    "tensor",
    "pipeline",
    "concurrency",
    "prompt_tokens",
    "output_tokens",
    "ttft_ms",
    "itl_ms",
)
USUAL_SPREAD = 0.2
MAX_PROBLEMS = 10
BYTE_ORDER_MARK = "\ufeff"
# Beyond these a number is a mistake: tokens, requests and milliseconds; ranks.
LEAST, MOST, MAX_DEGREE = 1e-6, 1e8, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measurement, as written: names are not looked up yet.

    quantization: ``""``: as the model's publisher stores it
    concurrency: of the whole replica
    poll_steps: as in ``EngineTraits``
    link, hop: names of the links between accelerators of a stage, and between stages; ``""``: the hardware's own
    """

    model: str
    hardware: str
    engine: str
    quantization: str
    tensor: int
    pipeline: int
    attention_data: int
    expert: int
    link: str
    hop: str
    concurrency: float
    prompt_tokens: float
    output_tokens: float
    spread: float
    poll_steps: float
    ttft_s: float
    itl_s: float

    @property
    def group(self) -> tuple[str, str, str]:
        """Model, hardware and engine."""
        return self.model, self.hardware, self.engine


def read_rows(text: str, origin: str) -> tuple[Row, ...]:
    """Return the rows of a CSV file. Raises UserInputError with the lines that cannot be read."""
    found, problems = read_lines(text, origin)
    if problems:
        raise _unreadable(origin, problems)
    return tuple(row for _, row in found)


def read_lines(text: str, origin: str) -> tuple[tuple[tuple[int, Row], ...], tuple[Problem, ...]]:
    """Return the rows that can be read, each with its line, and the lines that cannot, with their mistakes.

    Raises UserInputError where columns are missing or no line can be read.
    """
    reader = csv.reader(StringIO(text.removeprefix(BYTE_ORDER_MARK)))
    rows: list[tuple[int, Row]] = []
    problems: list[Problem] = []
    try:
        columns = _columns(next((line for line in reader if any(line)), []), origin)
        for cells in reader:
            if any(cell.strip() for cell in cells):
                _add_line(columns, cells, reader.line_num, rows, problems)
    except csv.Error as error:
        problems.append(Problem(where=f"line {reader.line_num}", what=str(error), hint="is it a CSV file?"))
    if problems and not rows:
        raise _unreadable(origin, problems)
    return tuple(rows), tuple(problems)


def _unreadable(origin: str, problems: Sequence[Problem]) -> UserInputError:
    return UserInputError(f"{origin}: {problems[0]}", hint=problems[0].hint, problems=tuple(problems[:MAX_PROBLEMS]))


def _columns(header: Sequence[str], origin: str) -> list[str]:
    """Return the names of columns, in small letters. Raises UserInputError where some that are needed are missing."""
    columns = [name.strip().lower() for name in header]
    names = {SILICON_NAMES.get(name, name) for name in columns}
    if missing := [name for name in COLUMNS if name not in names]:
        hint = f"the first line must name {','.join(COLUMNS)}"
        if not columns:
            raise UserInputError(f"{origin} is empty", hint=hint)
        if len(columns) == 1 and (";" in columns[0] or "\t" in columns[0]):
            hint = "separate the columns by commas"
        raise UserInputError(f"{origin} has no column {', '.join(missing)}", hint=hint)
    if twice := [name for name in COLUMNS if sum(SILICON_NAMES.get(column, column) == name for column in columns) > 1]:
        raise UserInputError(f"{origin} has the column {', '.join(twice)} twice", hint="leave one of them out")
    return columns


def _add_line(
    columns: Sequence[str], cells: Sequence[str], number: int, rows: list[tuple[int, Row]], problems: list[Problem]
) -> None:
    try:
        if any(cell.strip() for cell in cells[len(columns) :]):
            raise ValueError(f"{len(cells)} cells for {len(columns)} columns")
        filled = [*cells, *[""] * len(columns)]
        rows += [(number, row) for row in _read_line(dict(zip(columns, filled, strict=False)))]
    except ValueError as error:
        hint = "lengths, degrees and times are positive numbers"
        problems.append(Problem(where=f"line {number}", what=str(error), hint=hint))


def _read_line(line: Mapping[str, str]) -> Iterator[Row]:
    silicon = is_silicon(line)
    cells = {SILICON_NAMES.get(name, name): value.strip() for name, value in line.items()}
    if silicon and is_repeated(cells):
        return
    groups = _count(cells, "attention_data")
    concurrency = _positive(cells, "concurrency")
    yield Row(
        model=cells["model"],
        hardware=cells["hardware"],
        engine=cells["engine"].lower(),
        quantization=cells["quantization"].lower(),
        tensor=_count(cells, "tensor"),
        pipeline=_count(cells, "pipeline"),
        attention_data=groups,
        expert=_count(cells, "expert"),
        link=cells.get("link", ""),
        hop=cells.get("hop", ""),
        # That file counts the requests of one attention group.
        concurrency=concurrency * (groups if silicon else 1),
        prompt_tokens=_positive(cells, "prompt_tokens"),
        output_tokens=_positive(cells, "output_tokens"),
        spread=spread_of(cells) if silicon else _positive(cells, "spread", USUAL_SPREAD, zero=True),
        poll_steps=poll_steps_of(cells, concurrency) if silicon else _positive(cells, "poll_steps", 1.0),
        ttft_s=_positive(cells, "ttft_ms") / 1e3,
        itl_s=_positive(cells, "itl_ms") / 1e3,
    )


def _positive(
    cells: Mapping[str, str], name: str, default: float | None = None, *, zero: bool = False, most: float = MOST
) -> float:
    text = cells.get(name, "")
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (0.0 < value < float("inf") or (zero and value == 0.0)):
        raise ValueError(f"{name} is {text!r}" if text else f"{name} is empty")
    if value > most or 0.0 < value < LEAST:
        raise ValueError(f"{name} is {text!r}, not between {LEAST:g} and {most:g}")
    return value


def _count(cells: Mapping[str, str], name: str) -> int:
    """Return a degree; empty and 0 mean 1."""
    value = _positive(cells, name, 1.0, zero=True, most=MAX_DEGREE)
    if value != int(value):
        raise ValueError(f"{name} is {cells[name]!r}, no whole number")
    return max(1, int(value))
