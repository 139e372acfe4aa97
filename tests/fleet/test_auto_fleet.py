"""`split: auto` and `replicas: auto` with a real engine: decided, stable, and predicted beside measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fleet.fleet_lab import FleetLab, wait_until
from longboat.folders import home_folder

pytestmark = [pytest.mark.engine, pytest.mark.ray, pytest.mark.timeout(900)]

FLEET = """
name: auto
models:
  - {name: tiny, source: 'builtin:tiny', split: auto, replicas: auto, resources: {cpus: %s},
     load: {users: 2, prompt_tokens: 64, output_tokens: 64}}
"""
CPUS = (os.cpu_count() or 1) / 2
TOKENS = 200


@pytest.fixture(scope="module")
def up(lab: FleetLab) -> tuple[FleetLab, str]:
    """The fleet with a home folder of its own, and what `up` printed."""
    if not os.environ.get("LONGBOAT_TEST_ENGINE_PYTHON"):
        pytest.skip("LONGBOAT_TEST_ENGINE_PYTHON is not set: no engine environment")
    home = lab.folder / "home"
    home.mkdir()
    (home / "engines").symlink_to(home_folder() / "engines")
    lab.env["LONGBOAT_HOME"] = str(home)
    return lab, lab.must("up", lab.write(FLEET % CPUS), "--detach", timeout_s=600)


def test_the_plan_is_printed_and_served(up: tuple[FleetLab, str]) -> None:
    lab, printed = up
    (line,) = [line for line in printed.splitlines() if line.startswith("tiny") and "builtin:tiny" in line]
    assert line.count("(auto)") == 2
    assert "EXPECTED" in printed
    assert 1 <= len(lab.replicas("tiny")) <= 2
    assert lab.ask("tiny", timeout_s=120)[0] == 200


def test_a_second_up_changes_nothing(up: tuple[FleetLab, str]) -> None:
    lab, _ = up
    before = sorted(replica["replica"] for replica in lab.replicas("tiny"))
    assert "nothing to change" in lab.must("up", lab.write(FLEET % CPUS), "--detach", timeout_s=300)
    assert sorted(replica["replica"] for replica in lab.replicas("tiny")) == before


def test_status_shows_predicted_beside_measured(up: tuple[FleetLab, str]) -> None:
    lab, _ = up
    for _ in range(2):
        assert lab.ask("tiny", max_tokens=TOKENS, min_tokens=TOKENS, ignore_eos=True, timeout_s=300)[0] == 200
    wait_until("it was measured", lambda: pair(lab)["num_tokens"] >= TOKENS and pair(lab)["rank_bytes"])
    found = pair(lab)
    assert found["kv_blocks"] == found["predicted_kv_blocks"] > 0
    assert found["predicted_rank_bytes"] > 0
    assert found["itl_s"] > 0
    assert found["predicted_itl_s"] > 0
    assert found["ttft_s"] > 0


def pair(lab: FleetLab) -> dict[str, Any]:
    return dict(lab.status()["pairs"]["tiny"])


def test_the_pair_is_kept_for_calibration(up: tuple[FleetLab, str]) -> None:
    lab, _ = up
    shown = lab.must("status")
    assert "PREDICTED / MEASURED" in shown
    file = Path(lab.env["LONGBOAT_HOME"]) / "measured.csv"
    assert str(file) in shown
    assert "builtin:tiny" in file.read_text()
    lab.must("plan", "calibrate", str(file))
    learned = (file.parent / "calibration.toml").read_text()
    assert "here = true" in learned
    again = lab.must("up", lab.write(FLEET % CPUS), "--detach", timeout_s=300)
    assert "measured here" in again


def test_a_context_that_cannot_fit_is_refused_until_it_is_forced(up: tuple[FleetLab, str]) -> None:
    lab, _ = up
    text = "name: auto\nmodels: [{source: 'builtin:random-1b', context: 8192}]"
    done = lab.cli("up", lab.write(text, "large.yaml"), "--detach")
    assert done.returncode == 2
    assert "one request of 8192 tokens" in done.stderr
    assert "--kv-cache-memory-bytes" in done.stderr
    assert lab.replicas("tiny")
