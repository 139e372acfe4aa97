"""Numbers and names as people write them: what is unambiguous is accepted, and the rest is answered with what works."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from longboat.cli.app import app

ON = ("--on", "1xH100", "--offline")


def planned(*words: str) -> dict[str, object]:
    found = CliRunner().invoke(app, ["plan", *words, *ON, "--json"])
    assert found.exit_code == 0, found.output
    return dict(json.loads(found.stdout))


def refused(*words: str) -> str:
    found = CliRunner().invoke(app, ["plan", *words, *ON])
    assert found.exit_code != 0
    return found.output + found.stderr + str(found.exception)


@pytest.mark.parametrize("text", ["1000", "1k", "1K", "1,000", "1_000"])
@pytest.mark.parametrize("option", ["--concurrency", "--users"])
def test_counts_may_have_a_unit(text: str, option: str) -> None:
    assert planned("Qwen3-8B", option, text)["demand"]["users"] == 1000  # type: ignore[index]


@pytest.mark.parametrize("text", ["5", "5/s", "5 requests/s", "5 rps", "300/min", "18k/h"])
def test_rates_may_have_a_unit(text: str) -> None:
    assert planned("Qwen3-8B", "--rate", text)["rate"]["asked"] == pytest.approx(5.0)  # type: ignore[index]


def test_shares_may_be_percents() -> None:
    assert planned("Qwen3-8B", "--prefix-share", "60%")["demand"]["prefix_share"] == 0.6  # type: ignore[index]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("Qwen3-8B", "--context", "32k"), "32000 or 32768"),
        (("Qwen3-8B", "--concurrency", "many"), "write 1000 or 1k"),
        (("Qwen3-8B", "--concurrency", "1.5"), "write 1000 or 1k"),
        (("Qwen3-8B", "--rate", "fast"), "write 5, 5/s or 300/min"),
        (("nomic-embed-text",), "for embeddings"),
        (("bge-m3",), "for embeddings"),
        (("whisper-large-v3",), "for speech"),
        (("missing.gguf",), "there is no file missing.gguf"),
    ],
)
def test_what_is_not_understood_is_answered_with_what_works(words: tuple[str, ...], hint: str) -> None:
    assert hint in " ".join(refused(*words).split())


def test_a_command_of_ollama_names_a_model_and_its_usual_format() -> None:
    found = planned("ollama run llama3.3")
    assert "Llama-3.1-70B" in str(found["model"])
    assert found["plans"][0]["groups"][0]["quantization"] == "q4_k_m"  # type: ignore[index]
    tagged = planned("ollama run llama3.1:8b-instruct-q8_0")
    assert tagged["plans"][0]["groups"][0]["quantization"] == "q8_0"  # type: ignore[index]


def test_a_container_of_vllm_is_its_server() -> None:
    found = planned("docker run --gpus all vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B --max-num-seqs 64")
    assert found["model"] == "Qwen3-8B"


@pytest.mark.parametrize(("users", "shown"), [("1", "1 request "), ("1k", "1000 requests "), ("96", "96 requests ")])
def test_numbers_of_requests_are_printed_as_people_write_them(users: str, shown: str) -> None:
    found = CliRunner().invoke(app, ["plan", "Qwen3-8B", "--concurrency", users, *ON])
    assert found.exit_code == 0, found.output
    assert any(line.startswith(shown) for line in found.output.splitlines())
