from __future__ import annotations

import pytest
from predict_builders import library, shape_of

from longboat.core.errors import UserInputError
from longboat.planner.predict.rows import COLUMNS, read_rows
from longboat.planner.predict.sample import SampleMaker

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
    made, skipped = SampleMaker(library(), shape_of).samples(rows)
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
