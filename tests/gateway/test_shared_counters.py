"""Counters that the processes of one node share."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from counting import START_S, RandomTraffic

from longboat.core.errors import UserInputError
from longboat.core.policy import TenantPolicy
from longboat.gateway.limits import shared_grid
from longboat.gateway.limits.counters import Counters, LocalCounters
from longboat.gateway.limits.shared_counters import SharedCounters, open_counters
from longboat.gateway.limits.shared_grid import SharedGrid

ANN = TenantPolicy(name="ann")
LIMITED = TenantPolicy(
    name="limited", requests_per_minute=40, tokens_per_minute=60_000, tokens_per_day=2_000_000, concurrent_requests=12
)

CHILD = """
import sys
from pathlib import Path
from longboat.core.policy import TenantPolicy
from longboat.gateway.limits.shared_counters import open_counters
counters = open_counters(Path(sys.argv[1]))
tenant = TenantPolicy(name="ann", requests_per_minute=int(sys.argv[2]))
sys.stdin.readline()
admitted = sum(counters.reserve(tenant, tokens=10, now_s=float(sys.argv[3])) is None for _ in range(int(sys.argv[4])))
print(admitted, flush=True)
sys.stdin.read()
"""


class Child:
    """Another process of the node: reserves when told, then waits for its end."""

    def __init__(self, folder: Path, *, limit: int, num_requests: int) -> None:
        arguments = [str(folder), str(limit), str(START_S), str(num_requests)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def admitted(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=20)


@contextlib.contextmanager
def children(folder: Path, count: int, *, limit: int, num_requests: int) -> Iterator[list[Child]]:
    made = [Child(folder, limit=limit, num_requests=num_requests) for _ in range(count)]
    try:
        yield made
    finally:
        for child in made:
            child.process.kill()
            child.process.communicate(timeout=20)


@pytest.fixture
def no_reap_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_grid, "_REAP_S", 0.0)


def test_without_a_folder_counters_are_of_this_process() -> None:
    assert isinstance(open_counters(None), LocalCounters)


def test_processes_together_let_in_what_the_limit_allows_and_no_more(tmp_path: Path) -> None:
    with children(tmp_path, 3, limit=500, num_requests=400) as processes:
        for child in processes:
            child.go()
        total = sum(child.admitted() for child in processes)
        counters = open_counters(tmp_path)
        last = TenantPolicy(name="ann", requests_per_minute=500)
        while counters.reserve(last, tokens=10, now_s=START_S) is None:
            total += 1
        assert total == 500
        assert counters.counts_of("ann", START_S).tokens == 5000


def test_what_ran_in_a_killed_process_counts_no_more_but_its_windows_do(tmp_path: Path, no_reap_pause: None) -> None:
    with children(tmp_path, 1, limit=1000, num_requests=20) as [child]:
        child.go()
        assert child.admitted() == 20
        counters = open_counters(tmp_path)
        assert counters.counts_of("ann", START_S).running == 20
        child.kill()
        counts = counters.counts_of("ann", START_S)
        assert (counts.running, counts.requests, counts.tokens_today) == (0, 20, 200)


def test_process_in_the_place_of_a_dead_one_keeps_its_windows(tmp_path: Path) -> None:
    with children(tmp_path, 1, limit=1000, num_requests=20) as [child]:
        child.go()
        child.admitted()
        child.kill()
        counters = open_counters(tmp_path)
        counters.reserve(ANN, tokens=10, now_s=START_S)
        counts = counters.counts_of("ann", START_S)
        assert (counts.running, counts.requests, counts.tokens) == (1, 21, 210)


def test_closed_counters_leave_their_windows(tmp_path: Path) -> None:
    first = open_counters(tmp_path)
    first.reserve(ANN, tokens=10, now_s=START_S)
    first.close()
    first.release(ANN)
    second = open_counters(tmp_path)
    counts = second.counts_of("ann", START_S + 1)
    assert (counts.running, counts.requests) == (0, 1)
    assert second.counts_of("ann", START_S + 60).previous_requests == 1
    assert second.counts_of("ann", START_S + 120).previous_requests == 0


def test_counts_from_a_clock_that_was_wrong_are_left_out(tmp_path: Path) -> None:
    first = open_counters(tmp_path)
    first.reserve(ANN, tokens=10, now_s=START_S + 1e8)
    first.close()
    assert open_counters(tmp_path).counts_of("ann", START_S).requests == 0


def test_ten_thousand_requests_over_three_processes_lose_nothing(tmp_path: Path) -> None:
    counters: list[Counters] = [open_counters(tmp_path) for _ in range(3)]
    traffic = RandomTraffic(11, (ANN, LIMITED), counters)
    for _ in range(25_000):
        traffic.step()
    assert sum(tally.admitted for tally in traffic.tallies.values()) > 5_000
    for each in counters:
        assert each.counts_of("limited", traffic.now_s).running == traffic.num_running(LIMITED) <= 12
    traffic.finish()
    for tenant in (ANN, LIMITED):
        counts = counters[0].counts_of(tenant.name, traffic.now_s)
        assert counts.running == 0
        assert counts.tokens_today == traffic.tallies[tenant.name].tokens


def test_counts_are_the_same_as_those_of_one_process(tmp_path: Path) -> None:
    shared: list[Counters] = [open_counters(tmp_path) for _ in range(3)]
    one = LocalCounters()
    seen = []
    for counters in (shared, [one]):
        traffic = RandomTraffic(3, (ANN,), counters)
        for _ in range(2000):
            traffic.step()
        seen.append(counters[0].counts_of("ann", traffic.now_s))
    assert seen[0] == seen[1]


def test_day_is_restored_once_by_all_processes(tmp_path: Path) -> None:
    counters = [open_counters(tmp_path) for _ in range(3)]
    for each in counters:
        each.restore_today({"ann": 1000}, now_s=START_S)
    assert counters[0].counts_of("ann", START_S).tokens_today == 1000


def test_another_file_in_its_place_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "counters.bin").write_bytes(b"not a grid" * 1000)
    counters = open_counters(tmp_path)
    assert counters.reserve(ANN, tokens=1, now_s=START_S) is None
    assert open_counters(tmp_path).counts_of("ann", START_S).requests == 1


def test_folder_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserInputError) as caught:
        open_counters(tmp_path / "file" / "state")
    assert caught.value.hint


def test_tenants_beyond_the_files_room_are_still_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_grid, "MAX_KEYS", 2)
    counters = open_counters(tmp_path)
    assert isinstance(counters, SharedCounters)
    many = [TenantPolicy(name=f"t{index}", requests_per_minute=1) for index in range(4)]
    assert [counters.reserve(t, tokens=1, now_s=START_S) for t in many] == [None] * 4
    assert all(counters.reserve(t, tokens=1, now_s=START_S) is not None for t in many)
    assert counters.num_unshared == 2


def test_grid_takes_little_of_the_disk(tmp_path: Path) -> None:
    grid = SharedGrid(tmp_path / "g", num_cells=12)
    grid.base_of("a")
    assert (tmp_path / "g").stat().st_blocks * 512 < 256 * 1024
    grid.close()
