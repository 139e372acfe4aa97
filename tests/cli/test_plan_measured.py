from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longboat.cli.app import app

ROWS = """model,hardware,engine,quantization,tensor,pipeline,concurrency,prompt_tokens,output_tokens,ttft_ms,itl_ms
Qwen3-8B,H100,vllm,,1,1,4,1024,256,64,7.4
Qwen3-8B,H100,vllm,,1,1,32,1024,256,120,9.9
Llama-3.1-8B,H100,sglang,,1,1,4,1024,256,50,6.9
tiny,H100,vllm,,1,1,4,1024,256,50,2.0
Qwen3-8B,Abacus,vllm,,1,1,4,1024,256,64,7.4
"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "num_hidden_layers": 8,
    "vocab_size": 32000,
}


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    (tmp_path / "rows.csv").write_text(ROWS)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny_config.json").write_text(json.dumps(CONFIG))
    return tmp_path / "rows.csv"


def run(*arguments: str | Path) -> dict[str, object]:
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout) if result.stdout else {}


def test_evaluate_prints_errors_by_group_as_json(rows: Path) -> None:
    found = run("evaluate", rows, "--json", "--models", rows.parent / "models")
    assert {"itl_median_abs_error", "ttft_median_abs_error"} <= set(found["total"])  # type: ignore[call-overload]
    assert [group["num_rows"] for group in found["groups"]] == [1, 2, 1]  # type: ignore[attr-defined, index]
    assert found["skipped"] == [{"rows": 1, "reason": "unknown accelerator 'Abacus'", "first_line": 6}]


def test_lines_that_cannot_be_read_are_left_out_and_counted(rows: Path) -> None:
    rows.write_text(ROWS.replace(",7.4", ",", 1) + "Qwen3-8B,H100,vllm,,1,1,4,1024,256,64,\n")
    found = run("evaluate", rows, "--json")
    assert {"rows": 2, "reason": "itl_ms is empty", "first_line": 2} in found["skipped"]  # type: ignore[operator]
    assert found["total"]["num_rows"] == 3  # type: ignore[index, call-overload]


def test_names_with_a_quantization_are_rows_of_their_model(rows: Path) -> None:
    rows.write_text(ROWS.splitlines()[0] + "\nQwen3-32B-AWQ,RTX 4090,vllm,,2,1,8,1024,256,200,20\n")
    assert run("evaluate", rows, "--json")["total"]["num_rows"] == 1  # type: ignore[index, call-overload]


def test_evaluate_with_folds_tells_both(rows: Path) -> None:
    found = run("evaluate", rows, "--json", "--folds")
    assert len(found["folds"]) == 2  # type: ignore[arg-type]


def test_calibrate_counts_the_groups_of_its_own_rows(rows: Path) -> None:
    rows.write_text(ROWS.splitlines()[0] + "\nQwen3-32B-AWQ,RTX 4090,vllm,,2,1,8,1024,256,200,20\n")
    result = CliRunner().invoke(app, ["plan", "calibrate", str(rows)], catch_exceptions=False)
    assert "fitted to 1 rows of 1 groups" in result.output


def test_calibrate_writes_what_evaluate_then_uses(rows: Path, tmp_path: Path) -> None:
    before = run("evaluate", rows, "--json")
    run("calibrate", rows)
    assert (tmp_path / "home" / "calibration.toml").is_file()
    after = run("evaluate", rows, "--json")
    errors = [found["total"]["ttft_median_abs_error"] for found in (before, after)]  # type: ignore[index]
    assert errors[1] <= errors[0]
