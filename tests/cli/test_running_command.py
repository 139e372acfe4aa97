"""Plans of commands that already run: the model, the split and the settings are the command's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from longboat.cli.app import app
from longboat.cli.plan.inputs.running_command import is_command, request_of
from longboat.cli.plan.plan_options import PlanRequest
from longboat.core.errors import UserInputError

GIB = 1024**3


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path))


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["plan", *words, "--offline"])


def planned(command: str, on: str, version: str = "") -> dict[str, Any]:
    result = run(command, "--on", on, "--engine-version", version, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.mark.parametrize(
    ("command", "model", "fields"),
    [
        (
            "vllm serve Qwen/Qwen3-32B -tp 2 --max-model-len 16k -ep",
            "Qwen/Qwen3-32B",
            {"engine": "vllm", "tensor": 2, "context": 16_000, "expert_parallel": True, "quantization": "stored"},
        ),
        (
            "CUDA_VISIBLE_DEVICES=0 python -m vllm.entrypoints.openai.api_server --model=/m --pipeline_parallel_size=4",
            "/m",
            {"engine": "vllm", "tensor": 1, "pipeline": 4},
        ),
        ("env A=1 B=2 HF_TOKEN=x vllm serve m", "m", {"engine": "vllm"}),
        ("vllm serve m --quantization fp8 --kv-cache-dtype fp8", "m", {"quantization": "fp8", "kv_bits": 8}),
        (
            "python3 -m sglang.launch_server --model m --tp 8 --context-length 4096",
            "m",
            {"engine": "sglang", "tensor": 8, "context": 4096},
        ),
        ("vllm serve m --enable_expert_parallel", "m", {"expert_parallel": True}),
        ("vllm serve m --enable-expert-parallel --no-enable-expert-parallel", "m", {"expert_parallel": False}),
        ("vllm serve m --max-model-len 25.6k", "m", {"context": 25_600, "fills": False}),
        ("vllm serve m --max-model-len 2K", "m", {"context": 2048}),
        ("sglang serve --model-path m --context-length 8Ki", "m", {"context": 8192}),
        ("vllm serve m --max-model-len -1", "m", {"context": 0, "fills": True}),
        ("vllm serve m --max-model-len auto", "m", {"context": 0, "fills": True}),
        ("llama-server -m m.gguf -c 8192 -np 4", "m.gguf", {"context": 2048}),
        ("llama-server -m m.gguf -c 8192 -np 4 -kvu", "m.gguf", {"context": 8192}),
        ("llama-server -m m.gguf -c 8192 -np -1", "m.gguf", {"context": 8192}),
        ("llama-server -m m.gguf -c 8192 --no-kv-unified", "m.gguf", {"context": 2048}),
        ("llama-server -hf org/m-GGUF:Q8_0", "org/m-GGUF:Q8_0", {"engine": "llamacpp"}),
        ("llama-server --hf-repo org/m-GGUF", "org/m-GGUF:Q4_K_M", {"engine": "llamacpp"}),
        ("llama-server -hf org/m -hff m.gguf", "https://huggingface.co/org/m/resolve/main/m.gguf", {}),
        ("/usr/bin/llama-server -m m.gguf -c 8192", "m.gguf", {"engine": "llamacpp", "context": 8192, "tensor": 0}),
    ],
)
def test_a_command_gives_the_model_and_the_request(command: str, model: str, fields: dict[str, Any]) -> None:
    assert is_command(command)
    found, request = request_of(command, PlanRequest())
    assert found == model
    assert {name: getattr(request, name) for name in fields} == fields


def test_names_and_paths_are_not_commands() -> None:
    for name in ("Qwen3-32B", "meta-llama/Llama-3.1-8B", "/models/my model", "vllm", "serve"):
        assert not is_command(name)


def test_settings_of_the_command_decide_the_room_and_its_version_what_the_sampler_takes() -> None:
    command = "vllm serve Qwen/Qwen3-14B --gpu-memory-utilization 0.95 --max-model-len 8192"
    for version, room_gib in (("0.15.0", 41.94), ("0.17", 45.34)):  # llm-d-planner's accuracy_report.md
        plan = planned(command, "1xH100", version)["plans"][0]
        assert plan["groups"][0]["ranks"][0]["cache_bytes"] / GIB == pytest.approx(room_gib, rel=0.03)


def test_a_command_that_does_not_start_is_told_so_with_what_would_start() -> None:
    """github.com/vllm-project/vllm/issues/23278."""
    command = "vllm serve openai/gpt-oss-120b --gpu-memory-utilization 0.9 --max-model-len 8192"
    (note, *_) = planned(command, "1xH100", "0.10.1")["notes"]
    assert "vllm serve does not start with the given options: the plan adds --max-num-batched-tokens 2048" in note


def test_room_for_adapters_is_taken_from_the_cache() -> None:
    plain, lora = (
        planned(f"vllm serve Qwen/Qwen3-8B --max-model-len 8192 {more}", "1xRTX4090")["plans"][0]["groups"][0]["ranks"][
            0
        ]
        for more in ("", "--enable-lora --max-loras 8 --max-lora-rank 64")
    )
    assert lora["overhead"]["adapters"] > 0
    assert lora["cache_bytes"] < plain["cache_bytes"]


def test_ram_behind_the_cache_is_said_in_tokens() -> None:
    document = planned("vllm serve Qwen/Qwen3-8B --max-model-len 8192 --kv-offloading-size 9", "1xRTX4090")
    (note,) = [note for note in document["notes"] if "kv-offloading-size" in note]
    assert f"keeps {9 * 1024**3 // document['kv_bytes_per_token']} tokens in RAM" in note


def test_the_cost_of_a_running_command() -> None:
    words = ("cost", "vllm serve Qwen/Qwen3-32B -tp 2", "--on", "2xH100", "--offline", "--json")
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["plan"] == "2 x H100 SXM, tensor 2"


def test_settings_that_are_not_counted_are_named() -> None:
    document = planned("vllm serve Qwen/Qwen3-8B --max-model-len 8192 --cpu-offload-gb 4", "1xRTX4090")
    assert "not counted: --cpu-offload-gb" in document["notes"]


@pytest.mark.parametrize(
    ("command", "more", "message"),
    [
        ("vllm serve --tensor-parallel-size 2", (), "vllm serve names no model"),
        ("vllm serve m --tensor-parallel-size two", (), "--tensor-parallel-size 'two' is not a whole number"),
        ("vllm serve m --max-model-len 25.6K", (), "--max-model-len '25.6K' is not a whole number"),
        ("llama-server -m m.gguf -c -8192", (), "--ctx-size '-8192' is not a whole number"),
        ("sglang serve --model-path m --context-length 8K", (), "--context-length '8K' is not a whole number"),
        ("llama-server -c 4096", (), "llama-server names no model"),
        ("vllm serve Qwen/Qwen3-32B --cpu-offload-gb 10", (), "not counted: --cpu-offload-gb"),
        ("vllm serve 'm", (), "the command cannot be read"),
        ("vllm serve Qwen3-8B", ("--engine-version", "new"), "--engine-version 'new' is not a version"),
    ],
)
def test_mistakes_in_a_command_are_named(command: str, more: tuple[str, ...], message: str) -> None:
    result = run(command, "--on", "1xRTX3090", *more)
    assert isinstance(result.exception, UserInputError | SystemExit)
    assert message in str(result.exception) + result.output


@pytest.mark.parametrize(
    ("length", "told"),
    [("--max-model-len 20000", 20_000), ("--max-model-len 2k", 2000), ("--max-model-len auto", 40_960), ("", 40_960)],
)
def test_the_length_of_requests_is_the_commands(length: str, told: int, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    words = (f"vllm serve Qwen/Qwen3-32B -tp 2 {length}", "--on", "2xH100", "--write", str(path), "--json")
    document = json.loads(run(*words).stdout)
    assert f"--max-model-len {told}" in document["plans"][0]["groups"][0]["settings"]
    assert yaml.safe_load(path.read_text())["models"][0]["context"] == told


@pytest.mark.parametrize(
    ("more", "users", "settings", "kept"),
    [
        ("-c 8192 -np 4", 8, ["--ctx-size 8192", "--parallel 4"], (4, 2048)),
        ("-c 8192 -np 4", 1, ["--ctx-size 8192", "--parallel 4"], (4, 2048)),
        ("-c 8192 -np 4 --kv-unified", 8, ["--ctx-size 8192", "--parallel 4", "--kv-unified"], (1, 8192)),
        ("-c 8192", 8, ["--ctx-size 8192", "--parallel 4", "--kv-unified"], (1, 8192)),
    ],
)
def test_slots_divide_the_context_of_llama_server_or_share_it(
    more: str, users: int, settings: list[str], kept: tuple[int, int]
) -> None:
    result = run(f"llama-server -hf a/Qwen3-8B:Q4_K_M {more}", "--on", "RTX3090", "--concurrency", str(users), "--json")
    (group,) = json.loads(result.stdout)["plans"][0]["groups"]
    assert group["settings"] == settings
    replica = group["per_replica"]
    assert replica["kv_tokens"] == 8192
    assert (replica["max_sequences"], replica["max_context_tokens"]) == kept
