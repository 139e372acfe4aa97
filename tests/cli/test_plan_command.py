"""``longboat plan MODEL``, ``fit`` and ``cost`` as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cli.test_import_budget import cost_of_longboat
from longboat.cli.app import app
from longboat.cli.shared import cluster_at_hand
from longboat.core.errors import ClusterError, UserInputError

TWO = "A5000 + A4000, net=1GbE"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    return tmp_path


def run(*words: str) -> Result:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def document(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*words, "--json").stdout)
    return found


def refused(*words: str) -> UserInputError:
    with pytest.raises(UserInputError) as error:
        CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert error.value.hint
    return error.value


def test_plan_tells_split_speed_and_memory_of_each_rank() -> None:
    found = document("plan", "Qwen3-32B", "--on", TWO, "-q", "awq", "--context", "4096")
    best = found["plans"][0]
    assert best["groups"][0]["split"]["pipeline"] == 2
    assert sum(best["groups"][0]["split"]["layers"]) == 64
    assert best["total"]["tokens_per_s"] > 0
    for rank in best["groups"][0]["ranks"]:
        assert rank["used_bytes"] <= rank["budget_bytes"] <= rank["memory_bytes"]
    assert found["rejected"][0]["why"]


def test_plan_prints_tables_for_the_eye() -> None:
    text = run("plan", "Qwen3-32B", "--on", "4x(2xRTX4090), net=10GbE", "-q", "q4", "--concurrency", "8").stdout
    assert "4 replicas of 2 x RTX 4090, tensor 2" in text
    assert "do not pool memory" in text
    assert "REFUSED" in text


def test_the_word_model_may_be_written_and_options_may_come_first() -> None:
    plain = run("plan", "Qwen3-8B", "--on", "RTX4090").stdout
    assert run("plan", "model", "Qwen3-8B", "--on", "RTX4090").stdout == plain
    assert run("plan", "--on", "RTX4090", "Qwen3-8B").stdout == plain


def test_changes_are_compared_with_the_base() -> None:
    words = ("plan", "Qwen3-32B", "--on", TWO, "-q", "awq", "--swap", "2:RTX 4090", "--net", "10GbE")
    found = document(*words)
    assert found["base"]["cluster"]["text"] == "RTX A5000 + RTX A4000, net=1GbE"
    assert found["cluster"]["text"] == "RTX A5000 + RTX 4090, net=10GbE"
    assert found["plans"][0]["total"]["tokens_per_s"] > found["base"]["plans"][0]["total"]["tokens_per_s"]
    assert "AGAINST THE BASE" in run(*words).stdout


def test_machines_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("net: 10GbE\nnodes:\n  - {cards: 2xRTX4090, count: 4}\n")
    found = document("plan", "Qwen3-32B", "--on", str(file), "-q", "awq")
    assert found["cluster"]["accelerators"] == 8


@pytest.mark.parametrize(
    ("source", "model"), [("builtin:random-250m", "random-250m"), ("hf:Qwen/Qwen3-32B", "Qwen3-32B")]
)
def test_names_of_the_fleet_file_are_planned_too(monkeypatch: pytest.MonkeyPatch, source: str, model: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert document("plan", source, "--on", TWO, "-q", "awq")["model"] == model


def test_a_name_with_its_quantization_is_planned_and_marked_as_computed() -> None:
    found = document("plan", "Qwen3-32B-AWQ", "--on", TWO, "--context", "4096")
    plain = document("plan", "Qwen3-32B", "--on", TWO, "-q", "awq", "--context", "4096")
    assert found["model"] == "Qwen3-32B"
    assert found["plans"][0]["groups"] == plain["plans"][0]["groups"]
    assert "counted as Qwen3-32B in awq" in found["estimate"][0]
    assert plain["estimate"] == []
    assert "an estimate: weights: Qwen3-32B-AWQ" in run("plan", "Qwen3-32B-AWQ", "--on", TWO).stdout
    assert "Qwen3-32B-AWQ" in document("cost", "Qwen3-32B-AWQ", "--on", TWO)["estimate"][0]


def test_a_format_that_the_engine_does_not_compute_is_counted_in_another_and_said() -> None:
    found = document("plan", "Qwen3-32B-AWQ", "--on", "M3 Ultra 256GB")
    assert found["plans"][0]["groups"][0]["quantization"] == "q4_k_m"
    assert "llama.cpp computes no awq: counted in q4_k_m" in found["estimate"][-1]


@pytest.mark.parametrize(
    ("on", "engine", "message", "hint"),
    [
        ("M3 Ultra", "mlx", "how much memory MLX 0.30 takes", "--engine llama.cpp"),
        ("H100", "tensorrt-llm", "how much memory TensorRT-LLM 1.2 takes", "--engine vLLM or SGLang"),
        ("H100", "mlx", "it runs on metal", "--engine vLLM or SGLang or llama.cpp"),
        ("1x(H100) + 1x(M3 Ultra)", "vllm", "does not run on M3 Ultra under macos (metal)", "--engine llama.cpp"),
    ],
)
def test_an_engine_that_cannot_be_planned_says_what_can(on: str, engine: str, message: str, hint: str) -> None:
    error = refused("plan", "Qwen3-8B", "--on", on, "--engine", engine)
    assert message in error.message
    assert error.hint.startswith(hint)
    for word in error.hint.removeprefix("--engine ").split(" or "):
        assert document("plan", "Qwen3-8B", "--on", on, "--engine", word)["plans"]


def test_what_fits_in_fewer_bits_only_is_planned_so_and_says_it() -> None:
    found = document("plan", "Qwen3-32B", "--on", "2xRTX4090")
    assert found["plans"][0]["groups"][0]["quantization"] == "fp8"


def test_chart_is_an_svg_file_with_a_bar_for_each_rank(tmp_path: Path) -> None:
    chart = tmp_path / "plan.svg"
    run("plan", "Qwen3-8B", "--on", "2xRTX4090", "--chart", str(chart))
    text = chart.read_text()
    assert text.startswith("<svg ")
    assert text.endswith("</svg>\n")
    assert "tokens per second" in text
    assert "stage 0, rank 0: RTX 4090" in text
    assert "not an SVG" in refused("plan", "Qwen3-8B", "--on", "RTX4090", "--chart", str(tmp_path / "a.png")).message


def test_points_in_one_place_share_a_label(tmp_path: Path) -> None:
    chart = tmp_path / "plan.svg"
    run("plan", "Qwen3-32B", "--on", TWO, "-q", "awq", "--context", "4096", "--chart", str(chart))
    text = chart.read_text()
    assert ">64 to 256<" in text
    assert ">128<" not in text
    assert "weights in awq, RTX A5000 + RTX A4000, net=1GbE; prompts of 1024, answers of 256 tokens" in text
    assert "prefers-color-scheme: dark" in text


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (("Qwen3-32B",), "no machines", "--on"),
        (("Qwen3-33B", "--on", "RTX4090"), "Qwen3-33B", "Qwen3-32B"),
        (("Qwen3-32B", "--on", "RTX4091"), "RTX4091", "RTX 4090"),
        (("Qwen3-32B", "--on", "no.yaml"), "no.yaml", "path"),
        (("Qwen3-32B", "--on", "RTX4090", "-q", "stored"), "61.0 GiB", "awq"),
        (("Qwen3-8B", "--on", "RTX4090", "--context", "1000000"), "40960", "context"),
        (("Qwen3-8B", "--on", "RTX4090", "--context", "100"), "shorter", "--context 1280"),
        (("Qwen3-8B", "--on", "RTX4090", "--concurrency", "0"), "--concurrency 0", "1"),
        (("Qwen3-8B", "--on", "RTX4090", "--slo", "tpt=3ms"), "tpt", "t"),
        (("Qwen3-8B", "--on", "RTX4090", "-q", "q4_k_m"), "q4_k_m", "awq"),
        (("Qwen3-8B", "--on", "M3 Ultra", "--engine", "vllm"), "vLLM", "llama.cpp"),
        (("Llama-3.1-405B", "--on", "4x(2xRTX4090)"), "756.0 GiB", "--add"),
    ],
)
def test_refusals_name_constraint_and_next_step(words: tuple[str, ...], message: str, hint: str) -> None:
    error = refused("plan", *words)
    assert message in error.message
    assert hint in error.hint


def test_fit_lists_models_that_fit_largest_first() -> None:
    found = document("fit", "--on", "RTX4090", "--all")
    fits = [row["fits"] for row in found["models"]]
    assert fits == sorted(fits, reverse=True)
    rows = {row["model"]: row for row in found["models"]}
    assert rows["Qwen3-8B"]["quantization"] == "bfloat16"
    assert rows["Qwen3-32B"]["quantization"] == "awq"
    assert not rows["DeepSeek-R1"]["fits"]
    assert "GiB" in rows["DeepSeek-R1"]["plan"]


def test_cost_counts_watts_and_money() -> None:
    words = ("cost", "Llama-3.1-70B", "--on", "2xRTX4090", "-q", "q4", "--electricity", "Germany")
    found = document(*words, "--api", "0.03 USD per 1K tokens")
    assert found["usd_per_million"] > 0
    assert found["months_to_api"] > 0
    assert "USD a month" in run(*words).stdout
    assert refused("cost", "Qwen3-8B", "--on", "RTX4090", "--electricity", "Atlantis").hint


def test_live_machines_need_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("LONGBOAT_RUN", str(tmp_path / "run"))
    monkeypatch.setattr(cluster_at_hand, "RAY_WORD", tmp_path / "nothing")
    with pytest.raises(ClusterError) as error:
        CliRunner().invoke(app, ["plan", "Qwen3-8B", "--on", "live"], catch_exceptions=False)
    assert "longboat up" in error.value.hint


def test_planning_loads_neither_ray_nor_torch() -> None:
    report = cost_of_longboat("plan", "Qwen3-8B", "--on", "RTX4090", "--json")
    assert not {"ray", "torch", "vllm", "httpx"} & set(report["loaded"])
