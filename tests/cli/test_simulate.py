"""``longboat simulate`` as a user calls it."""

from __future__ import annotations

import gzip
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from longboat.cli.app import app
from longboat.core.errors import UserInputError

FLEET = """
apiVersion: longboat/v1
name: demo
models:
  - name: tiny
    source: builtin:tiny
    replicas: 2
    context: 512
"""
SESSIONS = "sessions:rate=2,system=300,turns=3,hours=0.01,output=30,longest=4000"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path / "home"))
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    return path


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["simulate", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: str) -> UserInputError:
    with pytest.raises(UserInputError) as error:
        CliRunner().invoke(app, ["simulate", *words], catch_exceptions=False)
    assert error.value.hint
    return error.value


def test_prints_a_row_for_each_policy(fleet: Path) -> None:
    words = ("--fleet", str(fleet), "--trace", SESSIONS, "--policies", "cost,round_robin", "--json")
    first, second = run(*words, "--seed", "3"), run(*words, "--seed", "3")
    assert first == second
    rows = json.loads(first)["policies"]
    assert [row["policy"] for row in rows] == ["cost", "round_robin"]
    for row in rows:
        assert row["requests"] > 10 and 0 < row["cached_share"] < 1
        assert {"mean", "p50", "p99"} <= set(row["ttft_ms"]) & set(row["itl_ms"])
        assert row["ttft_ms"]["p50"] <= row["ttft_ms"]["p99"]


def test_machines_and_replicas_can_be_others(fleet: Path) -> None:
    words = ("--fleet", str(fleet), "--trace", SESSIONS, "--requests", "20", "--gateways", "2", "--json")
    document = json.loads(run(*words, "--on", "1x(2xRTX4090)", "--replicas", "5", "--speed-spread", "0.1"))
    assert document["replicas"] == 5 and "RTX 4090" in document["replica"]
    assert document["policies"][0]["requests"] == 20


def test_writes_a_report_that_needs_no_network(fleet: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    table = run("--fleet", str(fleet), "--trace", SESSIONS, "--policies", "all", "--report", str(report))
    text = report.read_text()
    HTMLParser().feed(text)
    assert "<polyline" in text and "<script" not in text
    assert "http" not in text.replace("http://www.w3.org", "")
    assert "dynamo" in text and "dynamo" in table


def test_times_can_be_given(fleet: Path) -> None:
    text = "base_s=0.02,prompt_token_s=1e-4"
    words = ("--fleet", str(fleet), "--trace", SESSIONS, "--step-time", text, "--kv-tokens", "40000", "--json")
    document = json.loads(run(*words, "--event", "fail replica-0 5", "--event", "join replica-0 9"))
    assert document["step_time"]["base_s"] == 0.02
    assert document["limits"]["kv_blocks"] == 2500


AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n"


def test_a_trace_may_begin_with_a_byte_order_mark(fleet: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_bytes(b"\xef\xbb\xbf" + AZURE)
    assert json.loads(run("--fleet", str(fleet), "--trace", str(trace), "--json"))["policies"][0]["requests"] == 1


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (gzip.compress(AZURE), "gzip -dc"),
        (AZURE.decode().encode("utf-16"), "iconv -f UTF-16"),
        (AZURE + b"2023-11-16 18:15:47,\xff,44\n", "trace.csv:3: not text in UTF-8"),
        (AZURE.splitlines()[0] + b"\n", "trace.csv has no requests"),
    ],
    ids=["gzip", "UTF-16", "not UTF-8", "header"],  # gzip writes the time into its bytes
)
def test_a_trace_that_is_no_text_says_what_to_do(fleet: Path, tmp_path: Path, content: bytes, what: str) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_bytes(content)
    error = refused("--fleet", str(fleet), "--trace", str(trace))
    assert what in f"{error.message} {error.hint}"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (("--trace", ""), "--trace is missing"),
        (("--policies", "rond_robin"), "rond_robin"),
        (("--replicas", "0"), "--replicas 0 is not between 1"),
        (("--replicas", "200000"), "the nearest is --replicas 100000"),
        (("--rate-scale", "0"), "--rate-scale 0.0 is not between"),
        (("--requests", "0"), "--requests 0"),
        (("--trace", "nowhere.jsonl"), "nowhere.jsonl cannot be read"),
        (("--fleet", "nowhere.yaml"), "nowhere.yaml cannot be read: there is no such file"),
        (("--fleet", "."), ". cannot be read: it is a folder"),
        (("--trace", "sessions:speed=3"), "they have rate=1"),
        (("--model", "other"), "has no model other"),
        (("--on", "1x(2xRTX9999)"), "RTX9999"),
        (("--on", "1x(1xRTX4090)"), "2 replicas of tiny do not fit"),
        (("--event", "explode replica-0 5"), "is not understood"),
        (("--event", "fail replica-7 5"), "there is no replica-7"),
        (("--kv-tokens", "16"), "fits into a replica's KV cache of"),
        (("--step-time", "base=1"), "give"),
        (("--report", "out.pdf"), "out.pdf is not an HTML file"),
    ],
)
def test_a_mistake_says_what_works(fleet: Path, words: tuple[str, ...], what: str) -> None:
    given = {"--fleet": str(fleet), "--trace": SESSIONS}
    given |= dict(zip(words[::2], words[1::2], strict=True))
    error = refused(*(word for pair in given.items() for word in pair))
    assert what in f"{error.message} {error.hint}"


def test_the_engine_of_the_file_is_planned(fleet: Path) -> None:
    words = ("--fleet", str(fleet), "--trace", SESSIONS, "--json")
    fleet.write_text(FLEET.replace("    replicas: 2", "    engine: {kind: llama.cpp}"))
    unnamed, named = (run(*words, "--on", f"1xRTX4090{more}") for more in ("", ", engine=llama.cpp"))
    assert json.loads(unnamed) == json.loads(named)
    fleet.write_text(FLEET.replace("    replicas: 2", "    engine: {kind: vllm}"))
    assert "vLLM does not run on" in refused(*words, "--on", "M3Max").message


@pytest.mark.parametrize(("split", "on"), [("{tensor: 2}", "2x(3xRTX4090)"), ("{tensor: 1}", "1x(2xH100) + 1x(4xT4)")])
def test_replicas_find_room_by_the_cards_that_they_take(fleet: Path, split: str, on: str) -> None:
    words = ("--fleet", str(fleet), "--trace", SESSIONS, "--on", on, "--json")
    for replicas in (2, 3):
        fleet.write_text(FLEET.replace("replicas: 2", f"split: {split}\n    replicas: {replicas}"))
        if replicas == 3:
            assert refused(*words).message.startswith("3 replicas of tiny do not fit")
        else:
            assert json.loads(run(*words))["replicas"] == 2


ROW = '{"time_s": %d, "prompt_tokens": 20, "output_tokens": 5, "model": "%s"}'


def test_requests_of_other_models_are_left_out(fleet: Path, tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    path.write_text("\n".join(ROW % row for row in enumerate(["tiny", "other", "", "other", "tiny"])) + "\n")
    words = ("--fleet", str(fleet), "--trace", str(path), "--policies", "cost,round_robin", "--json")
    result = CliRunner().invoke(app, ["simulate", *words], catch_exceptions=False)
    assert [row["requests"] for row in json.loads(result.stdout)["policies"]] == [3, 3]
    assert "2 requests of other models are left out: other" in result.stderr
    path.write_text(ROW % (0, "other") + "\n")
    error = refused(*words)
    assert "no request of tiny: all are of other" in error.message and "--model" in (error.hint or "")


@pytest.mark.parametrize("settings", ["system=40000", "rate=0.0001,hours=0.0001"])
def test_generated_traces_without_requests_say_which_settings_to_change(fleet: Path, settings: str) -> None:
    error = refused("--fleet", str(fleet), "--trace", f"sessions:{settings}")
    assert "has no requests" in error.message
    assert "hours" in (error.hint or "") and "longest" in (error.hint or "")


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("engine: llama.cpp", ["each slot of llama.cpp"]),
        ("engine: sglang", ["SGLang plans its steps"]),
        ("speculative: {method: ngram}", ["speculative decoding is left out"]),
        ("split: {tensor: 2, data: 2}", ["each of the 2 data parts"]),
        ("", []),
    ],
)
def test_what_the_twin_does_not_play_is_said(fleet: Path, more: str, told: list[str]) -> None:
    source = "hf:Qwen/Qwen3-30B-A3B" if "data" in more else "hf:Qwen/Qwen3-0.6B"
    fleet.write_text(f"name: t\nmodels:\n  - source: {source}\n    {more}\n")
    words = (
        "--fleet",
        str(fleet),
        "--on",
        "8x(2xH100)",
        "--trace",
        SESSIONS,
        "--policies",
        "cost",
        "--requests",
        "5",
        "--json",
    )
    result = CliRunner().invoke(app, ["simulate", *words], catch_exceptions=False)
    document = json.loads(result.stdout)
    assert len(document["not_played"]) == len(told)
    for gap, begin in zip(document["not_played"], told, strict=True):
        assert gap.startswith(begin)
        assert f"not played: {gap}\n" in result.stderr
