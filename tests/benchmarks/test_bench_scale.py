"""The stand of the control plane: its controller, gateways and replicas understand each other."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from free_ports import free_port

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import bench_scale

NUM_REPLICAS, NUM_GATEWAYS = 20, 2


@pytest.mark.timeout(240)
async def test_replicas_come_and_go_in_all_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_scale, "TRIALS", 1)
    monkeypatch.setattr(bench_scale, "IDLE_S", 0.0)
    monkeypatch.setattr(bench_scale, "SETTLE_S", 0.0)
    for name in ("ENGINE_PORT", "GATEWAY_PORT"):
        monkeypatch.setattr(bench_scale, name, free_port())
    row = await bench_scale.measure(NUM_REPLICAS, NUM_GATEWAYS, 2, 1.0)
    assert (row["replicas"], row["gateways"]) == (NUM_REPLICAS, NUM_GATEWAYS)
    for change in ("change in all tables s", "silent one out of all s", "ended one out of all s"):
        assert math.isfinite(row[change]), f"{change}: it was not seen"
    assert row["gateway MiB, whole"] > 0
