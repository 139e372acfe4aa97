"""``longboat plan evaluate`` and ``longboat plan calibrate``: files in, errors or a calibration out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path

import typer

from longboat.builtin import describe, is_builtin
from longboat.catalog.formats.hf_config import parse_config
from longboat.catalog.library import Library, built_in_files, load_library
from longboat.catalog.names import normal_name
from longboat.catalog.quantized_names import named_model
from longboat.catalog.read_model import read_model
from longboat.catalog.readers.hf_shape import shape_from_config
from longboat.catalog.shape.model_shape import ModelShape
from longboat.core.errors import UserInputError
from longboat.folders import home_folder
from longboat.planner.predict.calibration.calibration_file import (
    built_in_calibration,
    read_calibration,
    write_calibration,
)
from longboat.planner.predict.calibration.evaluate import Errors, Evaluation, calibrate, evaluate, evaluate_folds
from longboat.planner.predict.calibration.rows import read_lines
from longboat.planner.predict.calibration.sample import Sample, SampleMaker, Skipped
from longboat.planner.predict.constants import Calibration

__all__ = ("read_samples", "run_calibrate", "run_evaluate")

OWN_FILE = "calibration.toml"


def run_evaluate(
    file: Path, *, folds: bool, as_json: bool, catalog: Sequence[Path], models: Path | None, calibration: Path | None
) -> None:
    """Print the errors of the predictions for the rows of ``file``."""
    samples, skipped = read_samples(file, catalog, models)
    if folds:
        start = _read_constants(calibration) if calibration else Calibration()
        found = evaluate_folds(samples, start)
    else:
        found = evaluate(samples, _read_constants(calibration))
    if as_json:
        print(json.dumps(_document(found, skipped), indent=2))
        return
    _print_table(found.groups, found.total)
    for fold in found.folds:
        _print_line(fold)
    _tell_skipped(skipped)


def run_calibrate(
    file: Path,
    *,
    output: Path | None,
    fresh: bool,
    source: str,
    here: bool,
    catalog: Sequence[Path],
    models: Path | None,
) -> None:
    """Fit constants to the rows of ``file`` and write them."""
    samples, skipped = read_samples(file, catalog, models)
    base = Calibration() if fresh else _read_constants(None)
    today = date.today().isoformat()
    fitted = calibrate(samples, base, here=here, source=source or file.name, date=today)
    target = output or home_folder() / OWN_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(write_calibration(fitted), encoding="utf-8")
    groups = len({sample.key for sample in samples})
    typer.echo(f"fitted to {len(samples)} rows of {groups} groups: {target}", err=True)
    _tell_skipped(skipped)


def read_samples(file: Path, catalog: Sequence[Path], models: Path | None) -> tuple[list[Sample], list[Skipped]]:
    """Return the rows that can be predicted, and those that cannot. Raises UserInputError where there are none."""
    files = [*built_in_files(), *((str(path), _text(path)) for path in catalog)]
    library = load_library(files)
    rows, problems = read_lines(_text(file), str(file))
    samples, skipped = SampleMaker(library, _Models(library, models)).samples(rows)
    skipped += [Skipped(reason=problem.what, line=int(problem.where.removeprefix("line "))) for problem in problems]
    if not samples:
        reason = skipped[0].reason if skipped else "it has no rows"
        raise UserInputError(f"no row of {file} can be predicted: {reason}", hint="give --catalog or --models")
    return samples, skipped


class _Models:
    """Finds shapes by name, each once: in the user's folder first, then in the catalog."""

    def __init__(self, library: Library, folder: Path | None) -> None:
        self._library = library
        self._own = {_model_name(path): path for path in sorted(folder.iterdir())} if folder else {}
        self._known: dict[str, ModelShape] = {}

    def __call__(self, name: str) -> ModelShape:
        if name not in self._known:
            self._known[name] = self._read(name)
        return self._known[name]

    def _read(self, name: str) -> ModelShape:
        own = self._own.get(normal_name(name))
        if own is not None:
            return read_model(str(own), self._library) if own.is_dir() else _read_file(own, name)
        if is_builtin(name):
            told = describe(name)
            return shape_from_config(told.config, name=told.name)
        if Path(name).exists():
            return read_model(name, self._library)
        return named_model(name, self._library)


def _read_file(path: Path, name: str) -> ModelShape:
    return shape_from_config(parse_config(_text(path), str(path)), name=name)


def _model_name(path: Path) -> str:
    """``maker--model_config.json`` is the model's name as well as a folder ``model`` is."""
    stem = path.name.removesuffix(".json").removesuffix("_config").rsplit("--", 1)[-1]
    return normal_name(stem)


def _read_constants(path: Path | None) -> Calibration:
    own = home_folder() / OWN_FILE
    if path is None and not own.is_file():
        return built_in_calibration()
    chosen = path or own
    return read_calibration(_text(chosen), str(chosen))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserInputError(f"{path} is not text in UTF-8: {error}", hint="save it as UTF-8") from None
    except OSError as error:
        hint = "check the path; docs/concepts/prediction.md describes the file"
        raise UserInputError(f"{path} cannot be read: {error.strerror}", hint=hint) from None


def _document(found: Evaluation, skipped: Sequence[Skipped]) -> dict[str, object]:
    return {
        "total": asdict(found.total),
        "folds": [asdict(fold) for fold in found.folds],
        "groups": [asdict(group) for group in found.groups],
        "skipped": [{"rows": count, "reason": reason, "first_line": line} for reason, count, line in _reasons(skipped)],
    }


def _reasons(skipped: Sequence[Skipped]) -> list[tuple[str, int, int]]:
    """Return each reason with how many rows it has and its first line in the file, the most frequent first."""
    first = {one.reason: one.line for one in sorted(skipped, key=lambda one: -one.line)}
    return [(reason, count, first[reason]) for reason, count in Counter(one.reason for one in skipped).most_common()]


def _tell_skipped(skipped: Sequence[Skipped]) -> None:
    for reason, count, line in _reasons(skipped):
        typer.echo(f"{count} row{'s' if count > 1 else ''} left out, line {line} first: {reason}", err=True)


def _print_table(groups: Sequence[Errors], total: Errors) -> None:
    width = max(len(group.group) for group in groups)
    print(f"{'model | hardware | engine':{width}}  rows  ITL error  bias   TTFT error  bias")
    for group in (*groups, total):
        _print_line(group, width)


def _print_line(errors: Errors, width: int = 0) -> None:
    itl, ttft = f"{errors.itl_median_abs_error:8.1%}", f"{errors.ttft_median_abs_error:8.1%}"
    name = errors.group.ljust(width)
    print(f"{name}  {errors.num_rows:4}   {itl}  {errors.itl_bias:5.2f}    {ttft}  {errors.ttft_bias:5.2f}")
