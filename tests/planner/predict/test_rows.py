from __future__ import annotations

import pytest
from predict_builders import library, shape_of

from longboat.core.errors import UserInputError
from longboat.planner.predict.calibration.rows import COLUMNS, read_lines, read_rows
from longboat.planner.predict.calibration.sample import SampleMaker

LINE = "Qwen3-8B,H100,vllm,,2,1,16,1024,256,80,9.5"
SILICON = (
    "id,backend,model_path,system,precision,isl,osl,batch_size,tp_size,pp_size,attention_dp_size,moe_ep_size,"
    "silicon_ttft_ms,silicon_tpot_ms,silicon_data_source\n"
)


def text(*lines: str) -> str:
    return "\n".join((",".join(COLUMNS), *lines))


def test_a_row_is_read_in_seconds() -> None:
    (row,) = read_rows(text(LINE), "rows.csv")
    assert (row.ttft_s, row.itl_s) == (0.08, 0.0095)
    assert (row.tensor, row.concurrency, row.spread) == (2, 16.0, 0.2)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(UserInputError, match=r"rows.csv has no column itl_ms"):
        read_rows(text(LINE).replace(",itl_ms", ""), "rows.csv")


@pytest.mark.parametrize("cell", ["", "x", "-1", "0", "nan", "inf"])
def test_a_time_that_is_none_is_refused_with_its_line(cell: str) -> None:
    with pytest.raises(UserInputError, match=r"line 3: itl_ms"):
        read_rows(text(LINE, LINE.replace("9.5", cell)), "rows.csv")


def test_the_columns_of_aiconfigurator_are_understood() -> None:
    line = "a,sglang,zhipuai/GLM-5,b200_sxm,fp8,1024,8192,4,8,1,2,8,120.0,10.0,db-dump/2026-04-27; x\n"
    repeated = line.replace(",4,8,1,2,", ",4,64,1,2,")
    (row,) = read_rows(SILICON + line + repeated, "rows.csv")
    assert row.group == ("zhipuai/GLM-5", "b200_sxm", "sglang")
    assert (row.concurrency, row.attention_data, row.spread) == (8.0, 2, 0.2)
    sample = SampleMaker(library(), shape_of).sample(row)
    assert sample.key == ("GLM-5", "B200 SXM", "sglang")


def test_rows_that_the_catalog_does_not_know_are_told_apart() -> None:
    rows = read_rows(text(LINE, LINE.replace("H100", "Abacus 9000")), "rows.csv")
    made, skipped = SampleMaker(library(), shape_of).samples(enumerate(rows, start=2))
    assert len(made) == 1
    assert "Abacus 9000" in skipped[0].reason


@pytest.mark.parametrize(
    ("engine", "hardware", "model", "precision", "concurrency", "source", "steps"),
    [
        ("sglang", "b200_sxm", "deepseek-ai/DeepSeek-R1", "fp8", 16, "db-dump/2026-04-27", 30.0),
        ("sglang", "gb300", "moonshotai/Kimi-K2.5", "fp4", 8, "source_file=2026-04-06.csv", 10.0),
        ("sglang", "b200_sxm", "zhipuai/GLM-5", "fp8", 64, "db-dump/2026-04-27", 1.0),
        ("sglang", "b200_sxm", "zhipuai/GLM-5", "fp4", 64, "db-dump/2026-04-27", 10.0),
        ("sglang", "h200_sxm", "deepseek-ai/DeepSeek-R1", "fp8", 64, "db-dump/2026-04-27", 1.0),
        ("vllm", "b200_sxm", "deepseek-ai/DeepSeek-R1", "fp8", 64, "db-dump/2026-04-27", 1.0),
        ("sglang", "b200_sxm", "deepseek-ai/DeepSeek-R1", "fp8", 64, "my own machine", 1.0),
    ],
)
def test_how_often_an_engine_looks_for_requests_follows_from_the_recipes_of_a_sweep(
    engine: str, hardware: str, model: str, precision: str, concurrency: int, source: str, steps: float
) -> None:
    line = f"a,{engine},{model},{hardware},{precision},1024,1024,{concurrency},8,1,1,1,120.0,10.0,{source}\n"
    (row,) = read_rows(SILICON + line, "rows.csv")
    assert row.poll_steps == steps


def test_a_column_may_say_how_often_an_engine_looks_for_requests() -> None:
    header, line = text(LINE).splitlines()
    (seldom,) = read_rows(f"{header},poll_steps\n{line},20", "rows.csv")
    (usual,) = read_rows(f"{header},poll_steps\n{line},", "rows.csv")
    assert (seldom.poll_steps, usual.poll_steps) == (20.0, 1.0)
    maker = SampleMaker(library(), shape_of)
    assert maker.sample(seldom).engine.poll_steps == 20.0


def test_files_as_other_programs_write_them_are_read() -> None:
    plain = read_rows(text(LINE), "rows.csv")
    header, line = text(LINE).splitlines()
    for written in (
        f"\ufeff{header}\r\n{line}\r\n",
        f"{header.upper()}\n\n{line}\n\n",
        f"{header.replace(',', ' , ')}\n{line.replace(',', ' , ')}",
        f"{header}\n{line},,\n{',' * 10}\n",
    ):
        assert read_rows(written, "rows.csv") == plain


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("9.5", "", "itl_ms is empty"),
        ("9.5", "NaN", "itl_ms is 'NaN'"),
        ("9.5", "1e-300", "itl_ms is '1e-300', not between"),
        (",1024,", ",1e12,", "prompt_tokens is '1e12', not between 1e-06 and 1e+08"),
        (",2,1,", ",2.5,1,", "tensor is '2.5', no whole number"),
        (",2,1,", ",9999,1,", "tensor is '9999', not between 1e-06 and 4096"),
        ("9.5", "9.5,surplus", "12 cells for 11 columns"),
        (",16,1024,256,80,9.5", "", "concurrency is empty"),
    ],
)
def test_a_line_that_cannot_be_read_is_told_and_others_are_read(old: str, new: str, reason: str) -> None:
    found, problems = read_lines(text(LINE, LINE.replace(old, new), LINE), "rows.csv")
    assert [number for number, _ in found] == [2, 4]
    assert [(problem.where, problem.what.startswith(reason)) for problem in problems] == [("line 3", True)]


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("", "rows.csv is empty", "the first line"),
        ("\n\n", "rows.csv is empty", "the first line"),
        (text(LINE).replace(",", ";"), "no column", "separate the columns by commas"),
        (text(LINE).replace("engine", "model"), "no column engine", "the first line"),
        (text(LINE).replace("itl_ms", "itl_ms,model"), "the column model twice", "leave one"),
        (text('"' + "x" * 200_000 + '"'), "line 2: field larger than field limit", "CSV"),
    ],
)
def test_a_file_that_is_no_table_is_refused(written: str, message: str, hint: str) -> None:
    with pytest.raises(UserInputError) as error:
        read_lines(written, "rows.csv")
    assert message in error.value.message
    assert hint in error.value.hint


def test_more_stages_than_layers_cannot_be_predicted() -> None:
    (row,) = read_rows(text(LINE.replace(",2,1,", ",1,500,")), "rows.csv")
    _, skipped = SampleMaker(library(), shape_of).samples([(7, row)])
    assert [(one.reason, one.line) for one in skipped] == [("500 stages for the 36 layers of Qwen3-8B", 7)]
