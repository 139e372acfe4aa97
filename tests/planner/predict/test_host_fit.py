"""What few rows of one's own machines teach, and what they leave alone."""

from __future__ import annotations

from dataclasses import replace

from predict_builders import library, shape_of

from longboat.planner.predict.calibration.calibrate import ratios_of
from longboat.planner.predict.calibration.calibration_file import read_calibration, write_calibration
from longboat.planner.predict.calibration.evaluate import calibrate
from longboat.planner.predict.calibration.host_fit import fit_hosts
from longboat.planner.predict.calibration.rows import COLUMNS, read_rows
from longboat.planner.predict.calibration.sample import Sample, SampleMaker
from longboat.planner.predict.constants import Calibration, host_name
from longboat.planner.predict.serving import times_of

HARDWARE = "EPYC 7003"
TRUTH = {
    "decode_read_weights": 2.5,
    "decode_layer": 0.6,
    "decode_step": 1.4,
    "decode_link_call": 4.0,
    "prefill_multiply": 3.0,
}


def samples(
    *models: str, hardware: str = HARDWARE, split: tuple[int, int] = (1, 1), link: str = "1GbE"
) -> list[Sample]:
    """Rows as a machine would measure them that is slower here and quicker there than the constants say."""
    tensor, pipeline = split
    ends = [f"{users},128,32,1,1,0,{link}" for users in (1, 4)]
    lines = [f"{model},{hardware},vllm,,{tensor},{pipeline},{end}" for model in models for end in ends]
    rows = read_rows("\n".join([",".join(COLUMNS) + ",spread,link", *lines]), "test")
    maker = SampleMaker(library(), shape_of)
    return [_measured(maker.sample(row)) for row in rows]


def _measured(sample: Sample) -> Sample:
    constants = Calibration().constants(engine=sample.engine.name, kernel=sample.kernel)
    real = {name: value * TRUTH.get(name, 1.0) for name, value in constants.items()}
    times = times_of(sample.features, sample.engine, sample.load, real)
    return replace(sample, row=replace(sample.row, itl_s=times.itl_s, ttft_s=times.ttft_s))


def worst_itl(made: list[Sample], calibration: Calibration) -> float:
    return max(abs(itl - 1.0) for itl, _ in ratios_of(made, calibration, groups=False))


def test_two_models_teach_what_a_third_one_takes() -> None:
    learned, held_out = samples("Llama-3.1-8B", "Qwen3-32B"), samples("Qwen3-14B")
    assert worst_itl(held_out, Calibration()) > 0.5
    assert worst_itl(held_out, fit_hosts(learned, Calibration())) < 0.1


def test_rows_of_a_split_teach_what_its_ranks_need_to_talk_over_another_link_too() -> None:
    alone = samples("Llama-3.1-8B", "Qwen3-32B")
    together = samples("Llama-3.1-8B", split=(4, 1), link="10GbE")
    held_out = samples("Qwen3-14B", split=(4, 1), link="100GbE")
    once, twice = fit_hosts(alone, Calibration()), fit_hosts([*alone, *together], Calibration())
    assert worst_itl(held_out, once) > 0.15
    assert worst_itl(held_out, twice) < 0.08
    assert worst_itl(samples("Qwen3-14B"), twice) < 0.1


def test_one_machine_says_nothing_about_another() -> None:
    fitted = fit_hosts(samples("Llama-3.1-8B"), Calibration())
    assert set(fitted.hosts) == {host_name(samples("Qwen3-8B")[0].machine, "vllm")}
    other = samples("Qwen3-8B", hardware="H100")
    assert ratios_of(other, fitted, groups=False) == ratios_of(other, Calibration(), groups=False)


def test_a_wild_row_does_not_rule_the_others() -> None:
    made = samples("Llama-3.1-8B", "Qwen3-8B", "Qwen3-14B", "Qwen3-32B")
    wild = replace(made[0], row=replace(made[0].row, itl_s=made[0].row.itl_s * 50))
    assert worst_itl(made[1:], fit_hosts([wild, *made[1:]], Calibration())) < 0.15


def test_a_second_run_goes_on_from_the_first() -> None:
    made = samples("Llama-3.1-8B", "Qwen3-32B")
    once = fit_hosts(made, Calibration())
    assert worst_itl(made, fit_hosts(made, once)) <= worst_itl(made, once) + 1e-6


def test_rows_from_here_leave_shared_constants_and_the_file_keeps_a_machines_own() -> None:
    base = Calibration(common={"decode_layer": 1.5})
    made = samples("Llama-3.1-8B", "Qwen3-32B")
    fitted = calibrate(made, base, here=True, source="test", date="2026-11-22")
    assert fitted.common == base.common
    assert fitted.engines == base.engines
    read = read_calibration(write_calibration(fitted), "test")
    assert worst_itl(made, read) < worst_itl(made, base)
    assert set(read.hosts) == set(fitted.hosts)
