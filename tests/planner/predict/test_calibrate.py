from __future__ import annotations

from dataclasses import replace

import pytest
from predict_builders import library, shape_of

from longboat.planner.predict.calibration.calibrate import fit_constants, ratios_of, sample_weights
from longboat.planner.predict.calibration.calibration_file import (
    built_in_calibration,
    read_calibration,
    write_calibration,
)
from longboat.planner.predict.calibration.evaluate import calibrate, evaluate, evaluate_folds, folds_of
from longboat.planner.predict.calibration.linear import solve_positive
from longboat.planner.predict.calibration.rows import Row
from longboat.planner.predict.calibration.sample import Sample, SampleMaker
from longboat.planner.predict.constants import Calibration
from longboat.planner.predict.serving import times_of

MODELS = ("Llama-3.1-8B", "Qwen3-8B", "Qwen3-30B-A3B", "Llama-3.1-70B")
TRUTH = Calibration(common={"decode_read_weights": 0.8, "decode_layer": 1.3}, engines={"vllm": {"floor": 2.0}})


def samples(models: tuple[str, ...] = MODELS, *, factor: float = 1.0) -> list[Sample]:
    """Rows as the model itself would measure them, with other constants than its defaults."""
    maker = SampleMaker(library(), shape_of)
    made = [
        maker.sample(_row(name, tensor, concurrency, prompt))
        for name in models
        for tensor in (2, 8)
        for concurrency in (4.0, 32.0)
        for prompt in (1024.0, 8192.0)
    ]
    return [_measured(sample, factor) for sample in made]


def _row(model: str, tensor: int, concurrency: float, prompt_tokens: float) -> Row:
    return Row(
        model=model,
        hardware="H100",
        engine="vllm",
        quantization="",
        tensor=tensor,
        pipeline=1,
        attention_data=1,
        expert=1,
        link="",
        hop="",
        concurrency=concurrency,
        prompt_tokens=prompt_tokens,
        output_tokens=512.0,
        poll_steps=1.0,
        spread=0.2,
        ttft_s=1.0,
        itl_s=1.0,
    )


def _measured(sample: Sample, factor: float) -> Sample:
    constants = TRUTH.constants(engine=sample.engine.name, kernel=sample.kernel)
    times = times_of(sample.features, sample.engine, sample.load, constants)
    return replace(sample, row=replace(sample.row, itl_s=times.itl_s * factor, ttft_s=times.ttft_s * factor))


def worst(made: list[Sample], calibration: Calibration) -> float:
    ratios = ratios_of(made, calibration, groups=True)
    return max(abs(ratio - 1.0) for pair in ratios for ratio in pair)


def test_fitting_comes_nearer_to_the_constants_behind_the_rows() -> None:
    made = samples()
    assert worst(made, fit_constants(made, Calibration())) < 0.5 * worst(made, Calibration())


def test_a_wild_row_does_not_rule_the_others() -> None:
    made = samples()
    wild = replace(made[0], row=replace(made[0].row, itl_s=made[0].row.itl_s * 100))
    fitted = fit_constants([wild, *made[1:]], Calibration())
    assert worst(made[1:], fitted) < 0.8 * worst(made[1:], Calibration())


def test_no_rows_change_nothing() -> None:
    assert fit_constants([], TRUTH) == TRUTH


def test_a_measured_group_gets_its_own_factor() -> None:
    made = samples(("Qwen3-8B",), factor=1.6)
    found = calibrate(made, Calibration(), here=True, source="a test", date="2026-01-01")
    group = found.groups["Qwen3-8B", "H100 SXM", "vllm"]
    assert group.here
    assert group.num_rows == len(made)
    assert evaluate(made, found).total.itl_median_abs_error < 0.15


def test_a_measurement_written_twice_counts_once() -> None:
    made = samples(("Qwen3-8B",))
    weights = sample_weights([made[0], *made])
    assert weights[0] + weights[1] == pytest.approx(weights[2])


def test_halves_are_of_the_same_size_and_do_not_depend_on_the_order() -> None:
    made = samples()
    halves = folds_of(made)
    assert [len(half) for half in halves] == [2, 2]
    assert folds_of(list(reversed(made))) == halves
    assert not halves[0] & halves[1]


def test_a_half_is_predicted_by_the_other() -> None:
    made = samples()
    found = evaluate_folds(made, Calibration())
    assert found.total.num_rows == len(made)
    assert sum(fold.num_rows for fold in found.folds) == len(made)
    assert found.total.itl_median_abs_error < evaluate(made, Calibration()).total.itl_median_abs_error


def test_a_calibration_survives_its_file() -> None:
    made = samples()
    found = calibrate(made, Calibration(), here=True, source='rows of "here"', date="2026-01-01")
    again = read_calibration(write_calibration(found), "a test")
    assert again.groups.keys() == found.groups.keys()
    assert again.source == found.source
    for old, new in zip(ratios_of(made, found, groups=True), ratios_of(made, again, groups=True), strict=True):
        assert new == pytest.approx(old, rel=0.02)


def test_the_built_in_calibration_knows_its_source() -> None:
    found = built_in_calibration()
    assert found.source
    assert found.date
    assert not any(group.here for group in found.groups.values())
    assert found.itl_spread.low < 1.0 < found.itl_spread.high


def test_equations_are_solved() -> None:
    assert solve_positive([[4.0, 2.0], [2.0, 3.0]], [8.0, 7.0]) == pytest.approx([1.25, 1.5])
