"""Impossible requests of ``longboat plan``: each refusal names the constraint, its numbers, and a change that works."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from longboat.cli.app import app
from longboat.core.errors import UserInputError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


@dataclass(frozen=True)
class Impossible:
    """A command and its refusal. change: in the hint; follow: the command with that change, which must work."""

    command: str
    says: str
    change: str
    follow: str


REQUESTS = (
    Impossible(
        "Qwen3-14B --on 4xRTX4090 --tensor 3",
        "40 attention heads are not divisible by tensor 3",
        "--tensor 2 instead of --tensor 3",
        "Qwen3-14B --on 4xRTX4090 --tensor 2",
    ),
    Impossible(
        "Phi-4 --on 4xRTX4090 --tensor 4",
        "10 key-value heads and tensor 4 do not divide each other",
        "--tensor 2",
        "Phi-4 --on 4xRTX4090 --tensor 2",
    ),
    Impossible(
        "GLM-4.5-Air --on 8xRTX4090 -q awq --tensor 8",
        "1408 inputs / 8 ranks = 176 is not a multiple of the 128 numbers",
        "--tensor 1",
        "GLM-4.5-Air --on 8xRTX4090 -q awq --tensor 1",
    ),
    Impossible(
        "Llama-3.2-1B --on '3x(8xRTX4090)' --pipeline 17",
        "17 stages for 16 layers",
        "--pipeline 16",
        "Llama-3.2-1B --on '3x(8xRTX4090)' --pipeline 16",
    ),
    Impossible(
        "Qwen3-8B --on 2xRTX4090 --tensor 8",
        "8 accelerators are needed, and there are 2",
        "--tensor 2",
        "Qwen3-8B --on 2xRTX4090 --tensor 2",
    ),
    Impossible(
        "Qwen3-8B --on 2xRTX4090 --expert-parallel",
        "Qwen3-8B is dense: it has 0 experts",
        "leave out --expert-parallel",
        "Qwen3-8B --on 2xRTX4090",
    ),
    Impossible(
        "Llama-3.1-8B --on 2xRTX4090 --engine llamacpp --tensor 2",
        "tensor 2: this engine divides layers only",
        "--tensor 1",
        "Llama-3.1-8B --on 2xRTX4090 --engine llamacpp --tensor 1",
    ),
    Impossible(
        "Qwen3-8B --on RTX4090 --context 100000",
        "a context of 100000 tokens is longer than the model's 40960",
        "--context 37691",
        "Qwen3-8B --on RTX4090 --context 37691",
    ),
    Impossible(
        "Llama-3.1-8B --on RTX4090 --context 131072 -q stored",
        "16.0 GiB of cache for 131072 tokens",
        "--context 45572",
        "Llama-3.1-8B --on RTX4090 --context 45572 -q stored",
    ),
    Impossible(
        "Llama-3.1-8B --on RTX4090 --context 80000 -q stored",
        "9.8 GiB of cache for 80000 tokens",
        "--kv-bits 8",
        "Llama-3.1-8B --on RTX4090 --context 80000 -q stored --kv-bits 8",
    ),
    Impossible(
        "Qwen3-8B --on RTX3060 -q fp8 --prompt-tokens 30000 --output-tokens 1000",
        "4.3 GiB of cache for 31000 tokens",
        "--prompt-tokens",
        "Qwen3-8B --on RTX3060 -q fp8 --prompt-tokens 1272 --output-tokens 1000",
    ),
    Impossible(
        "Qwen3-32B --on RTX4090 -q stored",
        "the weights take 61.0 GiB, and all accelerators together have 24.0 GiB",
        "--quantization awq",
        "Qwen3-32B --on RTX4090 -q awq",
    ),
    Impossible(
        "Llama-3.1-70B --on '2x(2xRTX4090)' -q stored",
        "the weights take 131.4 GiB, and all accelerators together have 96.0 GiB",
        '--add "2x(2 x RTX 4090)"',
        "Llama-3.1-70B --on '2x(2xRTX4090)' -q stored --add '2x(2 x RTX 4090)'",
    ),
    Impossible(
        "Llama-3.1-405B --on '4x(2xRTX4090)'",
        "756.0 GiB, and all accelerators together have 191.9 GiB",
        '--quantization awq --add "2x(2 x RTX 4090)"',
        "Llama-3.1-405B --on '4x(2xRTX4090)' -q awq --add '2x(2 x RTX 4090)'",
    ),
    Impossible(
        "Qwen3-8B --on 'M3 Ultra' -q awq",
        "llama.cpp does not compute weights in awq",
        "--quantization q4_k_m",
        "Qwen3-8B --on 'M3 Ultra' -q q4_k_m",
    ),
    Impossible(
        "Qwen3-8B --on V100 -q fp8",
        "kernels for fp8 need compute capability 7.5, and V100 SXM2 32GB has 7.0",
        "--quantization gptq-int8",
        "Qwen3-8B --on V100 -q gptq-int8",
    ),
    Impossible(
        "gpt-oss-20b --on 2xT4",
        "kernels for mxfp4 need compute capability 8.0, and T4 has 7.5",
        "--quantization fp8",
        "gpt-oss-20b --on 2xT4 -q fp8",
    ),
    Impossible(
        "Qwen3-8B --on 'M3 Ultra' --engine vllm",
        "vLLM does not run on M3 Ultra under macos",
        "--engine llama.cpp",
        "Qwen3-8B --on 'M3 Ultra' --engine llama.cpp",
    ),
    Impossible(
        "Qwen3-8B --on RTX4090 --os windows",
        "vLLM does not run on RTX 4090 under windows",
        "--os wsl2",
        "Qwen3-8B --on RTX4090 --os wsl2",
    ),
    Impossible(
        "Qwen3-8B --on H100 --engine tensorrt-llm",
        "how much memory TensorRT-LLM 1.2 takes",
        "--engine vLLM",
        "Qwen3-8B --on H100 --engine vLLM",
    ),
    Impossible("Qwen3-8B --on RTX4091", "unknown accelerator 'RTX4091'", "RTX 4090", "Qwen3-8B --on 'RTX 4090'"),
    Impossible(
        "Qwen3-8B --on '2x(RTX4090), net=7GbE'",
        "unknown network or bus '7GbE'",
        "5GbE",
        "Qwen3-8B --on '2x(RTX4090), net=5GbE'",
    ),
    Impossible(
        "Qwen3-33B-AWQ --on RTX4090",
        "unknown model 'Qwen3-33B-AWQ'",
        "Qwen3-32B",
        "Qwen3-32B --on RTX4090 --quantization awq",
    ),
    Impossible(
        "Qwen3-8B --on '2x(RTX4090)' --remove 3",
        "there is no node 3",
        "nodes are numbered 1 to 2",
        "Qwen3-8B --on '2x(RTX4090)' --remove 2",
    ),
    Impossible(
        "Qwen3-8B --on '2x(RTX4090)' --remove A4000",
        "there are 0 of A4000",
        "the machines have RTX 4090",
        "Qwen3-8B --on '2x(RTX4090)' --remove 'RTX 4090'",
    ),
    Impossible(
        "Qwen3-8B --on RTX4090 --remove 1", "without 1 no machine is left", "remove fewer", "Qwen3-8B --on RTX4090"
    ),
    Impossible(
        "Qwen3-8B --on '2x(RTX4090)' --swap A5000:A4000",
        "no node has RTX A5000",
        "the machines have RTX 4090",
        "Qwen3-8B --on '2x(RTX4090)' --swap 'RTX 4090:A4000'",
    ),
    Impossible(
        "Qwen3-8B --on RTX4090 --concurrency 0",
        "--concurrency 0 is less than 1",
        "--concurrency 1",
        "Qwen3-8B --on RTX4090 --concurrency 1",
    ),
    Impossible(
        "Qwen3-8B --on RTX4090 --context 100",
        "--context 100 is shorter than a request of --prompt-tokens 1024 and --output-tokens 256",
        "--context 1280",
        "Qwen3-8B --on RTX4090 --context 1280",
    ),
    Impossible("Qwen3-8B --on 0xRTX4090", "'0xRTX4090' is 0 of them", "between 1 and 4096", "Qwen3-8B --on 1xRTX4090"),
    Impossible(
        "Qwen3-8B --on 64xRTX4090",
        "one node with 64 accelerators, more than 16",
        '"8x(8xRTX 4090)"',
        "Qwen3-8B --on '8x(8xRTX 4090)'",
    ),
    Impossible("Qwen3-8B --on FILE", "nodes[0].cuont", "count", "Qwen3-8B --on '1x(2xRTX4090)'"),
)


def plan(command: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["plan", *shlex.split(command), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.command)
def test_a_refusal_names_constraint_numbers_and_a_change_that_works(request_: Impossible, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("nodes:\n  - {cards: 2xRTX4090, cuont: 4}\n")
    with pytest.raises(UserInputError) as error:
        plan(request_.command.replace("FILE", str(file)))
    assert request_.says in str(error.value) + error.value.message
    assert re.search(r"\d", error.value.message)
    assert request_.change in error.value.hint
    assert plan(request_.follow)["plans"]


def followed(command: str, change: str) -> str:
    """The command with one of the changes of a hint: the last of an option that is given twice counts."""
    if change.startswith("leave out "):
        return command.replace(change.removeprefix("leave out "), "")
    return f"{command} {re.split(r' instead of | [(]|: ', change)[0]}"


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda request: request.command)
def test_each_change_that_a_refusal_names_works(request_: Impossible) -> None:
    if "FILE" in request_.command:
        return
    with pytest.raises(UserInputError) as error:
        plan(request_.command)
    _, mark, changes = error.value.hint.partition("what would fit: ")
    for change in changes.split("; ") if mark else ():
        assert plan(followed(request_.command, change))["plans"], change


def test_there_are_twenty_different_requests_at_least() -> None:
    assert len({request.says for request in REQUESTS}) >= 20


@pytest.mark.parametrize(("slo", "change"), [("itl=18ms", "--quantization fp8"), ("itl=0.5ms", "--slo itl=25ms")])
def test_limits_that_no_plan_keeps_are_said_with_what_would_keep_them(slo: str, change: str) -> None:
    found = plan(f"Qwen3-8B --on RTX4090 --slo {slo}")["plans"][0]
    assert found["missed"].startswith("itl 24.")
    (told,) = [reason for reason in found["reasons"] if reason.startswith("what would keep the limit")]
    assert change in told
    changed = plan(f"Qwen3-8B --on RTX4090 {change if '--slo' in change else f'--slo {slo} {change}'}")
    assert changed["plans"][0]["missed"] == ""


def test_users_that_are_not_all_held_wait_and_it_is_said() -> None:
    found = plan("Qwen3-8B --on RTX4090 --concurrency 400")["plans"][0]
    assert any(re.search(r"holds \d+ requests of 1280 tokens at once, not 400", reason) for reason in found["reasons"])
    few = plan("Qwen3-8B --on RTX4090 --concurrency 16")["plans"][0]["total"]
    assert found["total"]["tokens_per_s"] >= few["tokens_per_s"]
    many = plan("Qwen3-8B --on RTX4090 --concurrency 100000")["plans"][0]["total"]
    assert many["tokens_per_s"] > few["tokens_per_s"] / 2
