"""Measured rows: the CSV form that calibration and evaluation read.

Columns: ``model,hardware,engine,quantization,tensor,pipeline,concurrency,prompt_tokens,output_tokens,ttft_ms,itl_ms``,
and where they matter ``attention_data,expert,link,hop,spread,poll_steps``. The columns of aiconfigurator's
``silicon_sample.csv`` are understood too (``silicon``). docs/concepts/prediction.md describes both.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO

from longboat.core.errors import Problem, UserInputError
from longboat.planner.predict.silicon import SILICON_NAMES, is_repeated, is_silicon, poll_steps_of, spread_of

__all__ = ("COLUMNS", "Row", "read_rows")

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
    """The rows of a CSV file. Raises UserInputError with the lines that cannot be read."""
    reader = csv.DictReader(StringIO(text))
    names = {SILICON_NAMES.get(name, name) for name in reader.fieldnames or ()}
    if missing := [name for name in COLUMNS if name not in names]:
        raise UserInputError(
            f"{origin} has no column {', '.join(missing)}", hint=f"the first line must name {','.join(COLUMNS)}"
        )
    rows: list[Row] = []
    problems: list[Problem] = []
    for number, line in enumerate(reader, start=2):
        try:
            rows += _read_line(line)
        except ValueError as error:
            hint = "lengths, degrees and times are positive numbers"
            problems.append(Problem(where=f"line {number}", what=str(error), hint=hint))
    if problems:
        shown = tuple(problems[:MAX_PROBLEMS])
        raise UserInputError(f"{origin}: {shown[0]}", hint=shown[0].hint, problems=shown)
    return tuple(rows)


def _read_line(line: Mapping[str, str | None]) -> Iterator[Row]:
    silicon = is_silicon(line)
    cells = {SILICON_NAMES.get(name, name): (value or "").strip() for name, value in line.items() if name}
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


def _positive(cells: Mapping[str, str], name: str, default: float | None = None, *, zero: bool = False) -> float:
    text = cells.get(name, "")
    if not text and default is not None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (0.0 < value < float("inf") or (zero and value == 0.0)):
        raise ValueError(f"{name} is {text!r}")
    return value


def _count(cells: Mapping[str, str], name: str) -> int:
    """A degree; empty and 0 mean 1."""
    value = _positive(cells, name, 1.0, zero=True)
    return max(1, int(value))
