"""Writes how far predictions are from measurements: docs/benchmarks/prediction.md.

    python benchmarks/bench_prediction.py ROWS.csv

ROWS.csv is in the form that docs/concepts/prediction.md describes. Needs no accelerator; takes a minute or two of CPU.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from published_speeds import PUBLISHED, Published
from roofline import roofline_ratios

from longboat.catalog.library import built_in_library
from longboat.catalog.model_entry import shape_of_entry
from longboat.cli.plan.plan_measured import read_samples
from longboat.planner.predict.calibration.calibration_file import built_in_calibration
from longboat.planner.predict.calibration.evaluate import (
    Errors,
    evaluate,
    total_errors,
)
from longboat.planner.predict.calibration.rows import Row
from longboat.planner.predict.calibration.sample import Sample, SampleMaker
from longboat.planner.predict.calibration.unseen import (
    INSIDE,
    TAILS,
    Parts,
    coverage,
    spread_of_parts,
    unseen_parts,
)
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.load import Load
from longboat.planner.predict.serving import predict

RESULT = Path(__file__).parents[1] / "docs" / "benchmarks" / "prediction.md"
LIMITS = (0.12, 0.22)
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
    groups = {sample.row.group for sample in samples}
    yield HEAD
    yield (
        f"{date.today().isoformat()}; {len(samples)} rows of {len(groups)} groups (model, hardware, engine), "
        "from ai-dynamo/aiconfigurator's `silicon_sample.csv` (Apache-2.0), without the rows for 16 and 64 "
        "accelerators, which repeat others.\n"
    )
    parts = unseen_parts(samples, Calibration())
    yield "## Unseen models on unseen hardware\n"
    yield (
        "The rows of each model on each kind of hardware are predicted by constants that are fitted to rows of other "
        "models on other hardware. Models of equal size count as one: DeepSeek-V3 and R1 differ in their numbers only. "
        "The constants start from the defaults, not from the built-in calibration, which is fitted to all rows. The "
        "roofline is the baseline: the longer of bytes / bandwidth and operations / peak, and a time per layer, with "
        "three constants that are fitted to the same rows.\n"
    )
    pairs = [pair for part in parts.values() for pair in part]
    total = total_errors("all rows", [ratio for _, ratio in pairs])
    yield from _limits(total)
    baseline = roofline_ratios(samples)
    lines = [total_errors(", ".join(name), [ratio for _, ratio in part]) for name, part in parts.items()]
    yield from _table([total, total_errors("all rows, by the roofline", baseline), *lines])
    yield from _intervals(parts)
    yield "\n## Known groups\n"
    yield "The built-in calibration uses the factor of each group, like a calibration on your own rows.\n"
    seen = evaluate(samples, built_in_calibration())
    yield from _table((seen.total, *seen.groups))
    yield from _published()


def _limits(total: Errors) -> Iterator[str]:
    for name, limit, value in (
        ("ITL", LIMITS[0], total.itl_median_abs_error),
        ("TTFT", LIMITS[1], total.ttft_median_abs_error),
    ):
        yield f"Limit for {name} {limit:.0%}: {'met' if value <= limit else '**not met**'}, {value:.1%}.\n"


def _intervals(parts: Parts) -> Iterator[str]:
    yield "\nAn interval is meant to hold 8 of 10 rows. Each part is held against the interval from all other parts.\n"
    yield "| | interval: measured / predicted | unseen rows inside |"
    yield "| --- | --- | --- |"
    for which, name in enumerate(("ITL", "TTFT")):
        told = spread_of_parts(parts, which)
        inside = max((coverage(parts, which, tail) for tail in TAILS), key=lambda share: -abs(share - INSIDE))
        yield f"| {name} | {told.low:.2f} to {told.high:.2f} | {inside:.0%} |"


def _table(lines: Sequence[Errors]) -> Iterator[str]:
    yield "| rows of | rows | ITL error | bias | TTFT error | bias |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for errors in lines:
        name = errors.group.replace("|", ", ")
        yield (
            f"| {name} | {errors.num_rows} | {errors.itl_median_abs_error:.1%} | {errors.itl_bias:.2f} "
            f"| {errors.ttft_median_abs_error:.1%} | {errors.ttft_bias:.2f} |"
        )


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
