"""Plans as fleet files that ``check`` takes, and as commands of engines."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from catalog.file_builders import gguf_header
from longboat.cli.app import app
from longboat.core.errors import UserInputError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path))


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def commands(*words: str) -> list[list[str]]:
    result = run("plan", *words, "--commands")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("# ") and ": start th" in line)
    return [shlex.split(line) for line in lines[first:] if line and not line.startswith("#")]


@pytest.mark.parametrize(
    ("model", "on", "more"),
    [
        ("Qwen3-8B", "1xRTX4090", ()),
        ("Qwen3-32B", "2x(1xH100), net=100GbE", ("--concurrency", "128")),
        ("Llama-3.1-405B", "2x(8xH100), net=100GbE", ("-q", "stored")),
        ("DeepSeek-V3", "1x(8xH200)", ("--expert-parallel",)),
        ("Qwen3-32B", "1xH200 + 8xL40S, net=10GbE", ()),
        ("Qwen3-32B", "2xH100", ("--engine", "sglang")),
    ],
)
def test_a_written_plan_is_a_fleet_file_without_mistakes(
    tmp_path: Path, model: str, on: str, more: tuple[str, ...]
) -> None:
    path = tmp_path / "fleet.yaml"
    planned = run("plan", model, "--on", on, *more, "--write", str(path))
    assert planned.exit_code == 0, planned.output
    checked = run("check", str(path), "--on", on)
    assert checked.exit_code == 0, checked.output
    assert "no mistakes" in checked.output
    assert "not placed" not in checked.output


def test_a_file_that_exists_is_kept(tmp_path: Path) -> None:
    (path := tmp_path / "fleet.yaml").write_text("mine")
    result = run("plan", "Qwen3-8B", "--on", "1xRTX4090", "--write", str(path))
    assert isinstance(result.exception, UserInputError)
    assert path.read_text() == "mine"


def test_a_format_without_known_files_is_refused_with_a_way_out(tmp_path: Path) -> None:
    words = ("plan", "Llama-3.1-70B", "-q", "awq", "--on", "2xRTX4090", "--write", str(tmp_path / "fleet.yaml"))
    result = run(*words)
    assert isinstance(result.exception, UserInputError)
    assert "no files of Llama-3.1-70B in that format are known" in str(result.exception)


def test_a_replica_over_two_nodes_has_a_command_for_each() -> None:
    words = ("Llama-3.1-405B", "--on", "2x(8xH100), net=100GbE", "-q", "stored")
    head, other = commands(*words)
    assert head[:3] == ["vllm", "serve", "meta-llama/Llama-3.1-405B-Instruct"]
    assert "--headless" in other and "--headless" not in head
    assert head[head.index("--node-rank") + 1] == "0" and other[other.index("--node-rank") + 1] == "1"
    assert head[head.index("--pipeline-parallel-size") + 1] == "2"
    first, second = commands(*words, "--engine", "sglang")
    assert "--dist-init-addr" in first and "--dist-init-addr" in second


def test_llama_cpp_has_a_server_and_a_peer_on_each_further_node() -> None:
    words = ("Llama-3.1-70B", "-q", "q8_0", "--engine", "llamacpp", "--on", "2x(2xRTX4090), net=10GbE")
    peer, server = commands(*words)
    assert (peer[0], server[0]) == ("rpc-server", "llama-server")
    assert len(server[server.index("--rpc") + 1].split(",")) == 1
    assert len(server[server.index("--tensor-split") + 1].split(",")) == 4


@pytest.mark.parametrize(("engine", "port"), [("vllm", 8000), ("sglang", 30000), ("llamacpp", 8080)])
def test_replicas_of_one_node_have_a_port_and_cards_of_their_own(engine: str, port: int) -> None:
    found = commands("Qwen3-8B", "--on", "4xRTX4090", "--engine", engine, "--concurrency", "64")
    assert [words[0] for words in found] == [f"CUDA_VISIBLE_DEVICES={number}" for number in range(4)]
    assert [int(words[words.index("--port") + 1]) for words in found] == [port + number for number in range(4)]


def test_nodes_with_the_same_replicas_are_written_once() -> None:
    words = ("Qwen3-8B", "--on", "2x(4xRTX4090), net=10GbE", "--concurrency", "64")
    printed = run("plan", *words, "--commands").output
    assert "4 replicas of 2 x RTX 4090, tensor 2: start these 2 on each of 2 nodes" in printed
    assert [line[0] for line in commands(*words)] == [f"CUDA_VISIBLE_DEVICES={cards}" for cards in ("0,1", "2,3")]


def test_a_replica_that_has_its_node_to_itself_needs_no_cards_named() -> None:
    (words,) = commands("Qwen3-8B", "--on", "3x(1xRTX4090), net=10GbE", "--concurrency", "64")
    assert words[:2] == ["vllm", "serve"]


def test_a_written_plan_for_llama_cpp_gives_each_slot_what_was_planned(tmp_path: Path) -> None:
    metadata = {"general.architecture": "llama", "llama.block_count": 1, "llama.embedding_length": 512}
    metadata |= {"llama.attention.head_count": 8, "llama.context_length": 32768}
    (model := tmp_path / "boat.gguf").write_bytes(
        gguf_header(metadata, [("token_embd.weight", 0, (1024, 512)), ("blk.0.ffn_up.weight", 12, (8192, 512))])
    )
    path, half, words = tmp_path / "fleet.yaml", tmp_path / "half.yaml", ("--on", "1xRTX3090")
    planned = run("plan", str(model), "--engine", "llamacpp", *words, "--write", str(path))
    assert planned.exit_code == 0, planned.output
    written = yaml.safe_load(path.read_text())["models"][0]
    assert written["engine"] == {"kind": "llama.cpp", "args": ["--parallel", "8"]}
    assert written["context"] == 1280
    assert run("check", str(path), *words).exit_code == 0
    small = run("plan", str(model), "--engine", "llamacpp", *words, "--kv-bits", "8", "--write", str(half))
    assert small.exit_code == 0, small.output
    args = yaml.safe_load(half.read_text())["models"][0]["engine"]["args"]
    assert args == ["--parallel", "8", "--cache-type-k", "q8_0", "--cache-type-v", "q8_0"]
    assert run("check", str(half), *words).exit_code == 0


def test_a_plan_for_llama_cpp_is_not_written_without_a_gguf_file(tmp_path: Path) -> None:
    words = ("plan", "Qwen3-8B", "--engine", "llamacpp", "--on", "1xRTX3090", "--write", str(tmp_path / "fleet.yaml"))
    result = run(*words)
    assert isinstance(result.exception, UserInputError)
    assert "needs one GGUF file" in str(result.exception)
    assert not (tmp_path / "fleet.yaml").exists()
