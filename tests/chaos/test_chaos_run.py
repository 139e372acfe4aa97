"""A small chaos run with a named seed: real gateways, fake engines, faults, and answers without a scar."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import chaos

DINGHY = 404
"""The seed. Another one is another schedule; this one has every kind of fault that needs no network lab."""


@pytest.mark.timeout(180)
def test_every_answer_of_a_faulted_run_is_that_of_an_unfaulted_one(tmp_path: Path) -> None:
    out = tmp_path / "chaos.json"
    kinds = "kill,stop,agent-kill,kill-all,break,truncate,garbage,nonsense,report,error"
    words = ["--seed", str(DINGHY), "--streams", "80", "--faults", "10", "--asks", "48", "--concurrency", "12"]
    status = chaos.main([*words, "--plain", "--engines", "3", "--kinds", kinds, "--out", str(out)])
    document = json.loads(out.read_text())
    assert document["bad"] == []
    assert status == 0
    assert document["faults"] == 10
    assert document["resumed"] > 0
    assert set(document["by_kind"]) == set(kinds.split(","))
