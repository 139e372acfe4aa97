"""The scaling benchmark: bridged plans, peers' steps, and how a peer's setting is chosen."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from scaling_bench.clairvoyant import _bridged, knowing
from scaling_bench.grid import Row
from scaling_bench.held_out import FRESH, fresh_of, held_out_of
from scaling_bench.loads import AZURE, SMALL, SMALL_LIMITS, SMALL_OBJECTIVE, Load
from scaling_bench.peers import PEERS
from scaling_bench.tables import best_of, fewest_of, markdown, verdicts

from longboat.core.scaling import ModelObservation
from longboat.simulator.traces.trace_request import TraceRequest

LOAD = Load("load", [], SMALL, SMALL_LIMITS, SMALL_OBJECTIVE)


def test_gap_that_is_shorter_than_a_cold_start_is_bridged() -> None:
    counts = [2, 2, 1, 1, 2, 1, 1, 1, 1, 2]
    assert _bridged(counts, 2) == ([2, 2, 2, 2, 2, 1, 1, 1, 1, 2], 1)
    assert _bridged(counts, 0) == (counts, 2)
    assert _bridged(counts, 9) == ([2] * 10, 0)


def wanted(name: str, *, ongoing: int, ready: int, seconds: int, current: int) -> int:
    """Return the count that a peer wants after a steady load; a replica bears 10 requests."""
    rule = PEERS[name](LOAD, 10.0, 1.0)
    for at in range(seconds):
        rule.observe(float(at), ModelObservation(model="m", running=ongoing, ready=ready))
        current = rule.want(float(at), current).replicas
    return current


def test_peers_grow_as_their_sources_say() -> None:
    assert wanted("ray", ongoing=60, ready=2, seconds=25, current=2) == 2  # 30 s of delay
    assert wanted("ray", ongoing=60, ready=2, seconds=45, current=2) == 6
    assert wanted("keda", ongoing=60, ready=2, seconds=1, current=2) == 6
    assert wanted("keda", ongoing=300, ready=2, seconds=1, current=2) == 6  # 4 more at most
    assert wanted("keda", ongoing=21, ready=2, seconds=1, current=2) == 2  # within the tolerance
    assert wanted("knative", ongoing=60, ready=2, seconds=1, current=2) == 9  # 70 % of the target
    assert wanted("apa", ongoing=60, ready=2, seconds=1, current=2) == 4  # twice at most
    assert wanted("dynamo", ongoing=5, ready=2, seconds=1, current=2) == 2  # no latencies, no step


def test_peers_shrink_as_their_sources_say() -> None:
    assert wanted("ray", ongoing=10, ready=8, seconds=590, current=8) == 8
    assert wanted("ray", ongoing=10, ready=8, seconds=640, current=8) == 1
    assert wanted("keda", ongoing=10, ready=8, seconds=290, current=8) == 8  # a window of 300 s
    assert wanted("keda", ongoing=10, ready=8, seconds=320, current=8) == 1
    assert wanted("knative", ongoing=10, ready=8, seconds=1, current=8) == 4  # a half at most
    assert wanted("apa", ongoing=10, ready=8, seconds=290, current=8) == 8
    assert wanted("apa", ongoing=10, ready=8, seconds=305, current=8) == 4


def row(rule: str, part: float, kept: float, cost: float, starts: int = 5) -> Row:
    return Row("load", 30.0, rule, part, kept, cost * 100.0, cost, starts, 1.0)


def test_peer_counts_with_its_best_setting_of_equal_cost() -> None:
    ours = row("longboat", 0.0, 0.993, 1.2)
    rows = [ours, row("apa", 0.5, 0.999, 1.5), row("apa", 0.7, 0.99, 1.2), row("apa", 0.9, 0.97, 1.1)]
    assert best_of(rows, ours, "apa").part == 0.7
    assert best_of([ours, *rows[1:2]], ours, "apa").part == 0.5
    assert not list(verdicts(rows))
    assert len(list(verdicts([*rows, row("keda", 0.7, 0.995, 1.2, 3)]))) == 2


def test_starts_are_compared_with_peers_that_keep_the_objective_at_equal_cost() -> None:
    ours = row("longboat", 0.0, 0.993, 1.2, starts=9)
    misses, dear = row("ray", 0.7, 0.98, 1.1, starts=1), row("apa", 0.7, 0.999, 1.3, starts=2)
    fair = row("keda", 0.9, 0.991, 1.25, starts=7)
    assert fewest_of([ours, misses, dear], ours) is None
    assert fewest_of([ours, misses, dear, row("keda", 0.7, 0.992, 1.2, starts=8), fair], ours) is fair
    assert [line for line in verdicts([ours, misses, dear, fair]) if "starts" in line] == [
        "load, cold start 30 s: keda keeps the objective at equal cost with fewer starts: 7, not 9"
    ]
    least = row("clairvoyant", 0.0, 0.99, 1.0, starts=4)
    assert [line.split(" | ")[-2:] for line in markdown([ours, least, misses, fair])][2] == ["keda 7", "4 |"]
    assert [line.split(" | ")[-2:] for line in markdown([ours, least, misses])][2] == ["none", "4 |"]


def arrivals(load: Load) -> list[tuple[float, int]]:
    return [(one.at_s, one.prompt_tokens) for one in load.requests]


def test_each_seed_draws_other_loads_and_the_same_ones_again(tmp_path: Path) -> None:
    rows = "".join(
        f"2023-11-16 18:{at // 20 % 60:02d}:{at % 20:02d}.5,{100 + at},{50 + at % 7}\n" for at in range(1200)
    )
    (tmp_path / AZURE).write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}")
    drawn = [name for name in FRESH if "mooncake" not in name]
    one, again, other = ([arrivals(load) for load in fresh_of(tmp_path, seed, drawn)] for seed in ("1", "1", "2"))
    assert one == again
    assert all(len(load) > 300 for load in one)
    assert all(mine != theirs for mine, theirs in zip(one, other, strict=True))
    assert one[0] != one[1]  # two of Azure's
    known = [arrivals(load) for load in held_out_of(tmp_path, ["wandering", "steps", "saw", "bursty"])]
    assert all(load not in known for load in one)
    assert [load.name for load in fresh_of(tmp_path, "1", ["saw"])] == ["saw 1"]


def test_rule_that_only_reacts_is_late_for_a_cold_start_after_a_jump() -> None:
    """One request each second, and five from the second minute on, each of which is a third of a replica's work."""
    times = [*map(float, range(120)), *(120.0 + at / 5.0 for at in range(600))]
    load = Load("jump", [TraceRequest(at_s, 1000, 10) for at_s in times], SMALL, SMALL_LIMITS, SMALL_OBJECTIVE)
    quick, slow = (knowing(load, cold_s, 1, 1e9) for cold_s in (2.0, 30.0))
    assert slow.kept_share < quick.kept_share < 1.0
    assert quick.counts[119] == quick.counts[125] < quick.counts[160]
    assert slow.counts[125] == slow.counts[150]
