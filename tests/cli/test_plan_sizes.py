"""Requests a second, shares of prompts in the prefix cache, and how many machines of which kind serve a load."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from longboat.cli.app import app
from longboat.core.errors import UserInputError

KINDS = "any of: H100, 4xL40S, B200, net=25GbE"


@pytest.fixture(autouse=True)
def home(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGBOAT_HOME", str(tmp_path))


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["plan", "Qwen3-32B", *words])


def document(*words: str) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def counts(*words: str) -> dict[str, int]:
    kinds = document("--on", "any of: H100, B200, net=25GbE", *words)["kinds"]
    return {row["machine"]: row["count"] for row in kinds if row["keeps"]}


def test_a_rate_keeps_requests_under_way_by_littles_law() -> None:
    found = document("--on", "2xH100", "--rate", "5")
    told, total = found["rate"], found["plans"][0]["total"]
    mean_tokens = 0.9 * 256
    answer_s = total["ttft_s"] + mean_tokens * total["itl_s"]
    assert told["kept"]
    assert told["concurrency"] == found["demand"]["users"]
    assert told["served"] == pytest.approx(total["tokens_per_s"] / mean_tokens)
    assert 5 <= told["served"] < 5.5
    assert told["served"] * answer_s == pytest.approx(told["concurrency"], rel=0.05)


def test_a_rate_that_the_machines_cannot_serve_is_said_and_has_a_status() -> None:
    result = run("--on", "1xH100", "--rate", "500", "--must-keep")
    assert result.exit_code == 6
    assert "500 requests/s are not served" in result.output


def test_each_kind_has_the_fewest_machines_that_serve_the_load() -> None:
    words = ("--rate", "10", "--slo", "itl=50ms,ttft=2s")
    found = document("--on", KINDS, *words)
    assert all(row["keeps"] for row in found["kinds"])
    prices = [row["purchase_usd"] for row in found["kinds"]]
    assert prices == sorted(prices)
    for row in found["kinds"]:
        count, machine = row["count"], row["machine"]
        node = machine if "x" in machine else f"1x{machine}"
        fewer = document("--on", f"{count - 1}x({node}), net=25GbE", *words) if count > 1 else None
        assert fewer is None or not (fewer["rate"]["kept"] and fewer["keeps_slo"]), row


def test_more_requests_or_tighter_limits_never_need_fewer_machines() -> None:
    few, many = counts("--rate", "8"), counts("--rate", "30")
    tight = counts("--rate", "8", "--slo", "itl=25ms")
    assert set(few) == {"H100", "B200"} >= set(many)
    assert all(many[machine] >= few[machine] for machine in many)
    assert all(tight[machine] >= few[machine] for machine in tight)


def test_a_kind_that_does_not_serve_the_load_says_why() -> None:
    found = run("--on", "any of: T4, 1xH100", "--slo", "itl=1ms", "--must-keep")
    assert found.exit_code == 6
    assert "none of these kinds serves the load within the limits" in found.output
    assert "> 1 ms" in found.output


def test_requests_at_once_are_a_load_too() -> None:
    (row,) = document("--on", "any of: 1xH100", "--concurrency", "128")["kinds"]
    assert row["plan"]["total"]["max_sequences"] >= 128


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--on", "any of: net=10GbE"), "does not name a kind of machine"),
        (("--on", "any of: H100", "--add", "1xH100"), "change given machines"),
        (("--on", "H100", "--rate", "-1"), "--rate -1 is not between"),
        (("--on", "H100", "--prefix-share", "1"), "--prefix-share 1 is not a share"),
    ],
)
def test_a_load_that_cannot_be_planned_is_refused(words: tuple[str, ...], message: str) -> None:
    result = run(*words)
    assert isinstance(result.exception, UserInputError)
    assert message in str(result.exception)


def test_prompts_in_the_prefix_cache_are_not_computed() -> None:
    words = ("--on", "2xH100", "--concurrency", "32", "--prompt-tokens", "8192")
    plans = [document(*words, "--prefix-share", share)["plans"][0]["total"] for share in ("0", "0.5", "0.9")]
    speeds, waits = [plan["tokens_per_s"] for plan in plans], [plan["ttft_s"] for plan in plans]
    assert speeds == sorted(speeds)
    assert waits == sorted(waits, reverse=True)
    assert waits[0] > 2 * waits[2]
    assert plans[0]["max_sequences"] == plans[2]["max_sequences"]  # room is counted for whole prompts
