"""``longboat plan MODEL``, ``fit`` and ``cost`` as a user calls them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cli.test_import_budget import cost_of_longboat
from longboat.cli.app import app, main
from longboat.cli.plan import plan_tables
from longboat.cli.plan.plan_command import LIMIT_MISSED
from longboat.cli.shared import cluster_at_hand
from longboat.cluster.host import hardware
from longboat.cluster.preflight import surroundings
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


def test_the_document_begins_with_the_size_of_the_model() -> None:
    found = document("plan", "Qwen3-32B", "--on", "8xH100")
    assert list(found)[:1] == ["model"]
    assert (found["parameters"], found["kv_bytes_per_token"], found["fits"]) == (32_762_123_264, 262_144, True)
    half = document("plan", "Qwen3-32B", "--on", "8xH100", "--kv-bits", "8")
    assert half["kv_bytes_per_token"] == 131_072


@pytest.mark.parametrize(
    "asked", [["Qwen3-32B", "--on", "RTX4090"], ["no-model", "--rate", "1", "--on", "any of: H100"]]
)
def test_a_refused_plan_prints_one_document(
    asked: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["longboat", "plan", *asked, "-q", "bf16", "--offline", "--json"]
    monkeypatch.setattr("sys.argv", argv)
    with pytest.raises(SystemExit) as ended:
        main()
    found, told = json.loads(capsys.readouterr().out), ended.value.code
    assert (found["fits"], told) == (False, found["error"]["exit_code"])


def test_a_model_that_does_not_fit_has_a_document_too() -> None:
    result = CliRunner().invoke(app, ["plan", "Qwen3-32B", "--on", "RTX4090", "-q", "bf16", "--json"])
    found = json.loads(result.stdout)
    assert isinstance(result.exception, UserInputError)
    assert (found["parameters"], found["fits"], found["plans"]) == (32_762_123_264, False, [])
    assert "does not fit" in found["error"]["message"]


def test_a_model_that_cannot_be_read_has_a_document_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    result = CliRunner().invoke(app, ["plan", str(tmp_path), "--on", "RTX4090", "--json"])
    assert json.loads(result.stdout)["parameters"] is None


def test_a_limit_that_cannot_be_kept_is_said_first_and_has_an_exit_code() -> None:
    words = ["plan", "Qwen3-32B", "--on", "H100", "--slo", "itl=1ms"]
    lines = run(*words).stdout.splitlines()
    assert "no plan keeps the limit" in lines[1]
    assert CliRunner().invoke(app, [*words, "--must-keep"]).exit_code == LIMIT_MISSED
    assert CliRunner().invoke(app, [*words[:-1], "itl=10s", "--must-keep"]).exit_code == 0


NAMES_IN_GGUF = (
    "Qwen3-32B-Q4_K_M",
    "Qwen3-32B:Q4_K_M",
    "unsloth/Qwen3-32B-GGUF:Q4_K_M",
    "hf:unsloth/Qwen3-32B-GGUF:Qwen3-32B-Q4_K_M.gguf",
)


@pytest.mark.parametrize("words", [(), ("--engine", "vllm")])
@pytest.mark.parametrize("mix", ["Q4_K_M", "q4_k_m"])
def test_a_gguf_mix_has_one_answer_however_it_is_written(
    words: tuple[str, ...], mix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    asked = document("plan", "Qwen3-32B", "-q", mix, "--on", "H100", *words)
    for name in NAMES_IN_GGUF:
        assert document("plan", name, "--on", "H100", *words)["plans"][0]["total"] == asked["plans"][0]["total"]
    assert any("as an experiment" in doubt for doubt in asked["estimate"]) == bool(words)


@pytest.mark.parametrize("name", NAMES_IN_GGUF)
def test_a_model_in_gguf_is_planned_for_the_engine_that_serves_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "engine=llama.cpp" in run("plan", name, "--on", "H100").stdout.splitlines()[0]
    assert document("cost", name, "--on", "H100")["cluster"].endswith("engine=llama.cpp")


def test_a_repository_of_gguf_files_is_no_single_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    error = refused("plan", "hf:unsloth/Qwen3-32B-GGUF", "--on", "H100")
    assert "several formats" in error.message and ":Q4_K_M" in error.hint


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("llama3.3", "Llama-3.1-70B"),
        ("deepseek-r1:70b", "Llama-3.1-70B"),
        ("qwen", "Qwen3-8B"),
        ("gemma3:27b", "Gemma-3-27B"),
    ],
)
def test_names_as_ollama_writes_them_are_known(name: str, model: str) -> None:
    assert document("plan", name, "--on", "8xH100")["model"] == model


def test_an_empty_name_is_no_folder() -> None:
    assert refused("plan", "", "--on", "H100").message == "no model is named"


def test_a_card_without_bfloat16_computes_in_float16() -> None:
    found = document("plan", "Qwen3-8B", "--on", "2xT4")
    assert "--dtype half" in found["plans"][0]["groups"][0]["settings"]
    assert any("T4 has no bfloat16" in doubt for doubt in found["estimate"])


def test_float16_is_said_only_of_plans_that_use_the_old_card() -> None:
    on = "1x(2xT4) + 1xA100"
    alone = document("plan", "Qwen3-8B", "--on", on, "--concurrency", "1")["plans"][0]
    assert alone["idle"] and not alone["estimate"]
    both = document("plan", "Qwen3-8B", "--on", on, "--concurrency", "64")["plans"][0]
    assert "T4 has no bfloat16" in both["estimate"][0]
    halves = ["--dtype half" in " ".join(group["settings"]) for group in both["groups"]]
    assert sorted(halves) == [False, True]


@pytest.mark.parametrize(
    ("name", "note"),
    [
        ("deepseek-r1:70b", "deepseek-r1:70b is planned as Llama-3.1-70B, the model that DeepSeek-R1 was distilled"),
        ("qwen", "qwen is planned as Qwen3-8B"),
        ("Qwen3-8B", ""),
        ("deepseek-r1:671b", ""),
    ],
)
def test_a_name_that_stands_for_another_model_says_so(name: str, note: str) -> None:
    found = document("plan", name, "--on", "8xH200", "--tensor", "8")
    assert " ".join(found["notes"]).startswith(note)
    assert any("is planned as" in told for told in found["notes"]) == bool(note)


def test_the_longest_request_is_what_fits_up_to_a_usual_length() -> None:
    assert "--max-model-len 32768" in document("plan", "Qwen3-8B", "--on", "H100")["plans"][0]["groups"][0]["settings"]


def test_an_encoder_is_named_as_one(tmp_path: Path) -> None:
    config = {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 768, "num_hidden_layers": 12}
    config |= {"num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 30522}
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = CliRunner().invoke(app, ["plan", str(tmp_path), "--on", "RTX4090", "--json"])
    found = json.loads(result.stdout)
    assert (found["fits"], "is an encoder" in found["error"]["message"]) == (False, True)
    assert found["parameters"] > 100e6


@pytest.mark.parametrize("kind", ["models", "cards", "networks", "engines", "prices"])
def test_the_catalog_is_listed(kind: str) -> None:
    assert len(json.loads(run("plan", "list", kind, "--json").stdout)) >= 3
    assert len(run("plan", "list", kind).stdout.splitlines()) >= 3


def test_there_is_no_list_of_other_things() -> None:
    assert "models" in refused("plan", "list", "modles").hint


def test_fit_takes_the_option_never_to_ask_the_hub() -> None:
    assert document("fit", "--on", "RTX4090", "--offline") == document("fit", "--on", "RTX4090")


def test_fit_shows_models_that_keep_the_limits_and_all_marks_the_others() -> None:
    words = ("fit", "--on", "RTX4090", "--slo", "itl=15ms")
    kept, every = document(*words)["models"], document(*words, "--all")["models"]
    assert kept and all(row["itl_s"] <= 0.015 and not row["missed"] for row in kept)
    assert any("itl" in row["missed"] for row in every)


def test_fit_has_one_line_for_each_model_on_a_narrow_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_tables, "WIDTH_WITHOUT_TERMINAL", 80)
    lines = run("fit", "--on", "RTX4090").stdout.splitlines()
    assert len(lines) == 1 + len(document("fit", "--on", "RTX4090")["models"])
    assert all(len(line) <= 80 for line in lines)


def test_tables_of_80_columns_have_whole_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    fitting = run("fit", "--on", "RTX4090").stdout
    assert fitting.splitlines()[0].split() == ["MODEL", "WEIGHTS", "TOKENS/S", "TTFT", "ms", "ITL", "ms", "PLAN"]
    assert "Mistral-Small-24B" in fitting and "bfloat16" in fitting
    (file := tmp_path / "fleet.yaml").write_text(
        "models: [{name: chat, source: hf:Qwen/Qwen3-32B, split: {tensor: 2}}]"
    )
    lines = run("check", str(file), "--on", "1x(8xH100)").stdout.splitlines()
    rows = [line for line in lines if line.startswith(("MODEL", "EXPECTED", "chat  "))]
    assert len(rows) == 4 and max(map(len, rows)) <= 80
    assert rows[1].split()[-4:] == ["2", "CPUs,", "2", "GPUs"]
    assert "chat: all 2 tensor ranks on one node" in lines
    monkeypatch.delenv("COLUMNS")
    assert "PARAMS" in run("fit", "--on", "RTX4090").stdout


def test_plans_of_80_columns_have_one_row_each_and_their_reasons_below(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("plan", "Llama-3.3-70B", "--on", "1x(1xRTX4090), 1x(1xRTX3090), net=10GbE")
    wide = run(*words).stdout
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(*words).stdout.splitlines()
    titles = [plan["title"] for plan in document(*words)["plans"]]
    assert len(titles) > 1
    at = lines.index(next(line for line in lines if line.startswith("PLAN ")))
    assert [line.split()[0] for line in lines[at + 1 :][: len(titles)]] == [str(n + 1) for n in range(len(titles))]
    for number, title in enumerate(titles, 1):
        assert len([line for line in lines if line.startswith(f"{number}: {title}: ")]) == 1
    assert "WHY NOT" in wide and "REFUSED" in lines and f"1: {titles[0]}" not in wide


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


def test_fewer_bits_are_compared_before_a_replica_crosses_the_network() -> None:
    words = ("plan", "Qwen3-32B", "--on", "2x(1xH100), net=100GbE", "--concurrency", "128")
    best = document(*words)["plans"][0]
    stored = document(*words, "--quantization", "stored")["plans"][0]
    assert best["groups"][0]["quantization"] == "fp8"
    assert not stored["changed_format"]
    assert best["total"]["tokens_per_s"] > 1.4 * stored["total"]["tokens_per_s"]
    assert f"with {stored['total']['tokens_per_s']:.0f} tokens/s" in best["changed_format"]
    assert best["changed_format"].endswith("Load Qwen/Qwen3-32B-FP8")
    text = run(*words).output
    assert text.index("Qwen/Qwen3-32B-FP8") < text.index("tokens/s in total")


def test_more_nodes_keep_the_format_that_a_few_ask_for() -> None:
    speeds = [
        document("plan", "Qwen3-32B", "--on", f"{count}x(1xH100), net=100GbE", "--concurrency", "128")["plans"][0]
        for count in (2, 3, 5)
    ]
    told = [plan["total"]["tokens_per_s"] for plan in speeds]
    assert told == sorted(told)


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


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--years", "nan"), "--years must be more than 0"),
        (("--years", "inf"), "--years must be more than 0"),
        (("--tokens-per-day", "nan"), "--tokens-per-day must be more than 0"),
        (("--price", "-500"), "--price -500 is not a price"),
        (("--price", "nan"), "--price nan is not a price"),
    ],
)
def test_cost_refuses_numbers_that_cannot_be(words: tuple[str, ...], told: str) -> None:
    assert told in refused("cost", "Qwen3-8B", "--on", "RTX4090", "--json", *words).message


def test_the_cost_of_a_rate_that_is_not_served_says_so() -> None:
    words = ("cost", "Qwen3-8B", "--on", "RTX3090", "--rate", "100")
    found = document(*words)
    assert not found["rate"]["kept"]
    assert "100 requests/s are not served" in found["notes"][0]
    assert "100 requests/s are not served" in run(*words).stdout
    assert document(*words[:-2])["rate"] is None


def test_a_name_that_is_too_long_for_a_file_is_no_model() -> None:
    assert "unknown model" in refused("plan", "m" * 300, "--on", "RTX4090").message
    assert document("plan", "Qwen3-0.6B", "--on", "RTX4090" + " " * 300)["fits"]


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


def test_plan_compares_speculation_and_prefill_apart() -> None:
    words = ["plan", "Qwen3-32B", "--on", "4x(2xH100), net=100GbE", "--offline", "--concurrency", "32"]
    asked = [*words, "--speculation", "draft:4", "--draft-model", "Qwen3-0.6B", "--apart"]
    document = json.loads(run(*asked, "--json").output)
    assert document["speculation"]["gain"] == pytest.approx(
        document["speculation"]["plain_itl_s"] / document["speculation"]["itl_s"]
    )
    assert document["speculation"]["acceptance_is_usual"]
    assert document["demand"]["draft"] == "Qwen3-0.6B"
    assert document["apart"]["prefill"] + document["apart"]["decode"] >= 2
    assert len(document["notes"]) >= 3
    assert "speculation" not in json.loads(run(*words, "--json").output)


def test_speculation_of_several_kinds_of_machines_is_refused() -> None:
    with pytest.raises(UserInputError, match="several kinds"):
        run("plan", "Qwen3-32B", "--on", "any of: 8xH100, 4xL40S", "--speculation", "mtp")


def test_plan_says_what_llama_cpp_keeps_in_ram() -> None:
    words = ["plan", "gpt-oss-120b", "--on", "RTX3090", "--offload", "Desktop 2ch DDR5-5600 64GB", "--offline"]
    told = run(*words, "--concurrency", "1").output
    assert "the experts of" in told
    assert "llama-server -m MODEL.gguf --n-gpu-layers" in told
    assert json.loads(run(*words, "--json").output)["ways"][0]["way"] == "experts"
    with pytest.raises(UserInputError, match="not one processor"):
        run("plan", "gpt-oss-120b", "--on", "RTX3090", "--offload", "RTX4090")
    with pytest.raises(UserInputError, match="no plan for --chart"):
        run(*words, "--apart")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("Llama-3.1-8B", "--on", "1xH100", "--speculation", "mtp:1"), "no layers that predict several tokens"),
        (("Llama-3.1-8B", "--on", "1xH100", "--draft-model", "Llama-3.2-1B"), "without --speculation"),
        (("Llama-3.1-8B", "--on", "1xH100", "--speculation", "eagle3:1:1:1:1"), "too many parts"),
    ],
)
def test_speculation_that_the_model_cannot_do_is_refused(words: tuple[str, ...], told: str) -> None:
    assert told in refused("plan", *words).message


def test_mtp_layers_take_memory_of_the_plan() -> None:
    words = ("plan", "DeepSeek-V3", "--on", "8xH200", "--concurrency", "64", "--json")
    plain, with_mtp = (json.loads(run(*words, *more).output) for more in ((), ("--speculation", "mtp:1")))
    most, plain_most = (found["plans"][0]["groups"][0]["per_replica"]["max_sequences"] for found in (with_mtp, plain))
    assert most < plain_most
    assert with_mtp["speculation"]["gain"] > 1


OFFLOAD = ("plan", "gpt-oss-120b", "--offload", "Desktop 2ch DDR5-5600 64GB", "--on")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("RTX3090", "--slo", "itl=1ms"), "--slo"),
        (("RTX3090", "--rate", "2"), "--rate"),
        (("RTX3090", "--engine", "vllm"), "llama.cpp"),
        (("1xRTX3090, 1xRTX4090",), "one kind of card"),
    ],
)
def test_offload_refuses_what_it_does_not_look_at(words: tuple[str, ...], told: str) -> None:
    assert told in refused(*OFFLOAD, *words).message


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ((), "take fewer bits: --quantization q4_k_m, or fewer requests at once: --concurrency 1, or more RAM"),
        (("-q", "q4_k_m", "--concurrency", "1"), "more RAM"),
    ],
)
def test_offload_without_room_names_what_was_not_yet_done(words: tuple[str, ...], hint: str) -> None:
    asked = ("plan", "Llama-3.1-405B", *OFFLOAD[2:], "RTX3090", *words, "--offline")
    assert refused(*asked).hint == hint


def test_offload_counts_the_requests_that_run_at_once() -> None:
    few, many = (
        json.loads(run(*OFFLOAD, "RTX3090", "--concurrency", number, "--json").output)["ways"][0]
        for number in ("1", "1000")
    )
    assert few["sequences"] == 1
    assert many["sequences"] < 1000


def test_machines_may_be_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    without_cards = replace(surroundings.this_machine(), num_gpus=0.0)
    monkeypatch.setattr(surroundings, "this_machine", lambda: without_cards)
    monkeypatch.setattr(hardware, "accelerator_name", str)
    (best,) = document("plan", "Qwen3-0.6B", "--on", "Here")["plans"][:1]
    assert "Desktop" in best["title"]
    monkeypatch.setattr(surroundings, "this_machine", lambda: replace(without_cards, num_gpus=2.0))
    monkeypatch.setattr(hardware, "accelerator_name", lambda: "NVIDIA GeForce RTX 4090")
    best, *_ = document("plan", "Qwen3-32B", "--on", "here")["plans"]
    assert "2 x RTX 4090" in best["title"]
    monkeypatch.setattr(hardware, "accelerator_name", lambda: "NVIDIA GeForce GT 1030")
    error = refused("plan", "Qwen3-0.6B", "--on", "here")
    assert error.message == "this machine has an unknown accelerator 'NVIDIA GeForce GT 1030'"
    assert "--on" in error.hint and "did you mean" not in error.hint
