"""Writes how far predictions are from measurements: docs/benchmarks/prediction.md.

    python benchmarks/bench_prediction.py ROWS.csv

ROWS.csv is in the form that docs/concepts/prediction.md describes. Needs no accelerator; takes a minute or two of CPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from published_speeds import PUBLISHED, Published

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.cli.plan.plan_measured import read_samples
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.predict.calibration.evaluate import (
    Errors,
    evaluate,
    evaluate_folds,
    held_out_ratios,
    total_errors,
)
from longboat.planner.predict.calibration.rows import Row
from longboat.planner.predict.calibration.sample import Sample, SampleMaker
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.load import Load
from longboat.planner.predict.serving import predict

RESULT = Path(__file__).parents[1] / "docs" / "benchmarks" / "prediction.md"
LIMITS = (0.12, 0.25)
OTHER_DIVISIONS = "abcdef"
HEAD = """\
# Prediction: results

Repeat it with `make bench-prediction DATA=ROWS.csv` on your own rows. [Prediction](../concepts/prediction.md) describes
the method. Errors are medians of |predicted / measured - 1| over rows; bias is the median of predicted / measured. ITL
is the mean time between tokens under load, so it includes the prompts of other requests; TTFT includes the wait.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--output", type=Path, default=RESULT)
    given = parser.parse_args()
    samples, _ = read_samples(given.rows, (), None)
    given.output.write_text("\n".join(_document(samples)) + "\n", encoding="utf-8")
    print(f"written: {given.output}")
    return 0


def _document(samples: Sequence[Sample]) -> Iterator[str]:
    folds = evaluate_folds(samples, Calibration())
    yield HEAD
    yield (
        f"{date.today().isoformat()}; {len(samples)} rows of {len(folds.groups)} groups (model, hardware, engine), "
        "from ai-dynamo/aiconfigurator's `silicon_sample.csv` (Apache-2.0), without the rows for 16 and 64 "
        "accelerators, which repeat others.\n"
    )
    yield "## Unseen groups\n"
    yield (
        "The SHA-256 of the groups' names (`model|hardware|engine`, smaller hashes first) divides the groups into two "
        "halves. Constants are fitted to one half and predict the other. They start from the defaults, not from the "
        "built-in calibration, which is fitted to all groups.\n"
    )
    yield from _limits(folds.folds, folds.total)
    yield from _table((*folds.folds, folds.total))
    yield ""
    yield from _table(folds.groups)
    yield "\nThe next table uses other divisions, with a letter in front of each name before hashing.\n"
    yield from _table(list(_other_divisions(samples)))
    yield "\n## One left out at a time\n"
    yield from _table(list(_left_out(samples)))
    yield "\n## Known groups\n"
    yield "The built-in calibration uses the factor of each group, like a calibration on your own rows.\n"
    seen = evaluate(samples, built_in_calibration())
    yield from _table((seen.total, *seen.groups))
    yield from _published()


def _limits(folds: Sequence[Errors], total: Errors) -> Iterator[str]:
    for name, limit, values in (
        ("ITL", LIMITS[0], [errors.itl_median_abs_error for errors in (*folds, total)]),
        ("TTFT", LIMITS[1], [errors.ttft_median_abs_error for errors in (*folds, total)]),
    ):
        states = ["met" if value <= limit else "**not met**" for value in values]
        yield f"Limit for {name} {limit:.0%}: halves {states[0]}, {states[1]}; all rows {states[2]}.\n"


def _table(lines: Sequence[Errors]) -> Iterator[str]:
    yield "| rows of | rows | ITL error | bias | TTFT error | bias |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for errors in lines:
        name = errors.group.replace("|", ", ")
        yield (
            f"| {name} | {errors.num_rows} | {errors.itl_median_abs_error:.1%} | {errors.itl_bias:.2f} "
            f"| {errors.ttft_median_abs_error:.1%} | {errors.ttft_bias:.2f} |"
        )


def _other_divisions(samples: Sequence[Sample]) -> Iterator[Errors]:
    for salt in OTHER_DIVISIONS:
        found = evaluate_folds(samples, Calibration(), salt)
        for errors in (*found.folds, found.total):
            yield replace(errors, group=f"{salt}: {errors.group}")


def _left_out(samples: Sequence[Sample]) -> Iterator[Errors]:
    kinds: tuple[tuple[str, Callable[[Sample], str]], ...] = (
        ("model", lambda sample: sample.row.model),
        ("hardware", lambda sample: sample.row.hardware),
        ("engine", lambda sample: sample.row.engine),
    )
    for kind, key in kinds:
        names = sorted({key(sample) for sample in samples})
        parts = [(name, held_out_ratios(samples, Calibration(), [_is(key, name)])) for name in names]
        for name, pairs in parts:
            yield total_errors(f"{kind} {name}", [ratio for _, ratio in pairs])
        every = [ratio for _, pairs in parts for _, ratio in pairs]
        yield total_errors(f"each {kind} once", every)


def _is(key: Callable[[Sample], str], name: str) -> Callable[[Sample], bool]:
    return lambda sample: key(sample) == name


def _published() -> Iterator[str]:
    yield "\n## Published speeds\n"
    yield (
        "The built-in calibration predicts published figures to which it is not fitted. Figures are output tokens per "
        "second of all requests during decoding, with prompts of 512 and outputs of 128 tokens by default.\n"
    )
    yield "| model | hardware | engine, split | requests | published | predicted | ratio | source |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for published in PUBLISHED:
        speed = _speed(published)
        split = f"TP{published.tensor} PP{published.pipeline}"
        stored, link = published.quantization or "as published", f", {published.link}" if published.link else ""
        asked = f"{published.concurrency} × {published.prompt_tokens}"
        yield (
            f"| {published.model} {stored} | {published.tensor * published.pipeline}× {published.hardware}{link} "
            f"| {published.engine} {split} | {asked} | {published.tokens_per_s:.1f} | {speed:.1f} "
            f"| {speed / published.tokens_per_s:.2f} | {published.source} |"
        )


def _speed(published: Published) -> float:
    library = built_in_library()
    maker = SampleMaker(library, lambda name: shape_of_entry(library.models.find(name)))
    deployment = maker.deployment(_row(published))
    load = Load(
        concurrency=published.concurrency, prompt_tokens=published.prompt_tokens, output_tokens=published.output_tokens
    )
    return published.concurrency / predict(deployment, load, built_in_calibration()).itl_s.value


def _row(published: Published) -> Row:
    return Row(
        model=published.model,
        hardware=published.hardware,
        engine=published.engine,
        quantization=published.quantization,
        tensor=published.tensor,
        pipeline=published.pipeline,
        attention_data=1,
        expert=1,
        link=published.link,
        hop=published.link,
        concurrency=published.concurrency,
        prompt_tokens=published.prompt_tokens,
        output_tokens=published.output_tokens,
        spread=0.2,
        poll_steps=1.0,
        ttft_s=1.0,
        itl_s=1.0,
    )


if __name__ == "__main__":
    sys.exit(main())
