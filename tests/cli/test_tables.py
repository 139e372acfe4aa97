"""Seconds that a replica spent in its phases, as people see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

import longboat.cli
from cli.cli_builders import replica, report
from longboat.cli.look.plan_and_actual import pair_table
from longboat.cli.shared.console import make_console
from longboat.cli.shared.tables import fleet_view, phase_times, resume_lines, start_table, tenant_view
from longboat.cluster.protocol.shown import shown_gateway
from longboat.core.states import Phase, RankState, ResumeLevel, StartTimes
from longboat.planner.search.measured import Pair
from longboat.spec.types.gateway import GatewaySpec, TenantSpec


def test_the_running_phase_grows_between_announcements() -> None:
    state = replica(phase=Phase.LOADING, phase_s={"placing": 1.0, "loading": 2.0}, announced_at_s=100.0)
    assert phase_times(state, 100.0) == "placing 1.0 · loading 2.0"
    assert phase_times(state, 100.7) == "placing 1.0 · loading 2.7"


def test_a_start_is_shown_beside_the_one_before_it_on_the_same_node() -> None:
    before = StartTimes(total_s=45.0, phase_s={"starting": 4.0, "loading": 40.1})
    state = replica(phase=Phase.LOADING, phase_s={"starting": 4.2, "loading": 12.0}, announced_at_s=100.0)
    assert phase_times(state, 100.0, before) == "starting 4.2 · loading 12.0 of 40.1"
    assert phase_times(replica(phase_s=before.phase_s), 100.0, before) == "starting 4.0 · loading 40.1"


def test_each_nodes_newest_start_has_its_row() -> None:
    times = StartTimes(total_s=45.04, phase_s={"starting": 4.0, "loading": 9.0, "compiling": 30.0, "warming": 0.01})
    console = Console(width=120)
    with console.capture() as shown:
        console.print(start_table({"m": {"b": times, "a": times}}))
    rows = [line.split(maxsplit=4) for line in shown.get().splitlines()[1:]]
    assert [row[:4] for row in rows] == [["m", "a", "45.0", "s"], ["m", "b", "45.0", "s"]]
    assert rows[0][4].rstrip() == "starting 4.0 · loading 9.0 · compiling 30.0"


def test_serving_and_phases_of_no_time_are_left_out() -> None:
    state = replica(phase_s={"placing": 0.01, "warming": 0.5, "ready": 90.0}, announced_at_s=100.0)
    assert phase_times(state, 105.0) == "warming 0.5"


def test_a_reason_for_a_low_level_of_resuming_is_told_once_for_each_model() -> None:
    why = {"resume": ResumeLevel.REPLAY, "resume_detail": "carried: seeded differs"}
    told = resume_lines([replica(**why), replica(**why), replica(resume=ResumeLevel.CARRIED, resume_detail="proved")])
    assert len(told) == 1
    assert "replay: carried: seeded differs" in told[0]


@pytest.mark.parametrize(
    ("limits", "names", "cells"),
    [
        ({"concurrent_requests": 7}, ["CONCURRENT"], ["7"]),
        ({"requests_per_minute": 5, "tokens_per_day": 9}, ["REQUESTS/MIN", "TOKENS/DAY"], ["5", "9"]),
        ({"tokens_per_minute": 6, "money_per_day": 8}, ["TOKENS/MIN", "MONEY/DAY"], ["6", "8.00"]),
    ],
)
def test_table_of_tenants_has_the_limits_that_one_of_them_has(
    limits: dict[str, Any], names: list[str], cells: list[str]
) -> None:
    console = Console(width=80)
    tenants = (TenantSpec(name="search", priority=2, **limits), TenantSpec(name="b"))
    with console.capture() as shown:
        console.print(tenant_view(shown_gateway(GatewaySpec(auth="keys", tenants=tenants)), report()))
    header, row, other = shown.get().splitlines()[-3:]
    assert header.split() == ["TENANT", "WEIGHT", "PRIORITY", *names]
    assert row.split() == ["search", "1", "2", *cells]
    assert other.split() == ["b", "1", "1", *("-" for _ in names)]


@pytest.mark.parametrize("detail", ["bad template near [/INST]", "[m1] -> [m1, m2]"])
def test_square_brackets_of_engines_and_files_are_shown_as_they_are(detail: str) -> None:
    console = make_console(width=400)
    with console.capture() as shown:
        console.print(fleet_view(report(replica(phase=Phase.FAILED, detail=detail)), {}))
        console.print(detail)
    assert [line for line in shown.get().splitlines() if detail in line][-1] == detail
    assert shown.get().count(detail) == 2


def test_a_terminal_of_80_columns_cuts_no_fact_of_a_fleet() -> None:
    rank = RankState(
        node_rank=0, node_id="n", address="192.168.1.20", hostname="gpu-box", pid=1234567, memory_bytes=2**34
    )
    serves = replica("qwen3-32b", "r1", shape="TP2 PP1", resume=ResumeLevel.CARRIED, ranks=(rank,))
    reason = "the engine ended with 1: No available memory for the cache blocks"
    failed = replica("qwen3-32b", "r2", phase=Phase.FAILED, detail=reason, phase_s={"loading": 3.0})
    starts = replica("qwen3-32b", "r3", phase=Phase.LOADING, phase_s={"placing": 1.0, "loading": 2.0})
    console = Console(width=80)
    with console.capture() as shown:
        console.print(fleet_view(report(serves, failed, starts), {"qwen3-32b": 3, "phi": 1}))
    lines = shown.get().splitlines()
    assert "…" not in shown.get()
    for whole in ("gpu-box", "1234567", "16.00", "carried", "TP2 PP1", "waiting for a place"):
        assert any(whole in line for line in lines), (whole, lines)
    assert f"qwen3-32b r2 failed: {reason}" in " ".join(line.rstrip() for line in lines)
    assert "qwen3-32b r3 loading: placing 1.0 · loading 2.0" in lines
    assert not any("r1 ready:" in line for line in lines)


def test_predicted_and_measured_figures_fit_100_columns() -> None:
    pair = Pair(
        predicted_kv_blocks=123456, kv_blocks=123456, predicted_rank_bytes=2**34, rank_bytes=2**34,
        predicted_itl_s=0.0123, itl_s=0.1234, predicted_ttft_s=1.234, ttft_s=12.345, num_tokens=12345, concurrency=16.0,
    )  # fmt: skip
    console = Console(width=100)
    with console.capture() as shown:
        console.print(pair_table({"qwen3-32b": pair}))
    assert len(shown.get().splitlines()) == 2, "each row is whole"
    assert "…" not in shown.get()


def test_only_one_module_makes_consoles() -> None:
    """Another console would take square brackets in free text for markup."""
    folder = Path(longboat.cli.__file__).parent
    makers = {path.name for path in folder.rglob("*.py") if " Console(" in path.read_text()}
    assert makers == {"console.py"}


def test_a_heading_of_two_lines_is_whole_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = Table("GiB\nPREDICTED / MEASURED", box=None)
    table.add_row("1 / 2")
    make_console().print(table)
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == ["GiB", "PREDICTED / MEASURED", "1 / 2"]
