"""Figures of a chaos run: whom a fault hit, and what gap it made."""

from __future__ import annotations

from typing import Any

import pytest
from chaos_suite.figures import differing_kinds, figures_of, is_good, percentile
from chaos_suite.play import Played
from chaos_suite.schedule import Fault


def _answer(number: int, *, began_s: float = 10.0, replica: str = "e0", **changes: Any) -> dict[str, Any]:
    """Ten pieces, a tenth of a second apart, but for one silence of 0.7 s in the middle."""
    arrivals = [100.0 * n + (600.0 if n > 5 else 0.0) for n in range(1, 11)]
    good = {"number": number, "status": 200, "is_hung": False, "failure": "", "wrongs": []}
    times = {"began_s": began_s, "lasted_ms": 1600.0, "arrivals_ms": arrivals}
    return {**good, **times, "replicas": [replica], "gateways": [(0, began_s)], **changes}


def _fault(kind: str = "kill", target: int = 0, at_s: float = 10.52, **changes: Any) -> Played:
    return Played(Fault(at_s=0.0, kind=kind, target=target, **changes), at_s)


def test_gap_is_the_silence_around_the_fault() -> None:
    found = figures_of([_answer(0), _answer(1, replica="e1")], [_fault()])
    assert found["by_kind"]["kill"]["affected"] == 1
    assert found["gap_ms"]["max"] == pytest.approx(700, abs=1)


def test_answer_that_was_elsewhere_or_over_is_not_counted() -> None:
    answers = [_answer(0, replica="e1"), _answer(1, began_s=2.0), _answer(2, began_s=11.0)]
    assert figures_of(answers, [_fault()])["by_kind"]["kill"]["affected"] == 0


def test_cable_is_cut_some_time_after_the_fault_began() -> None:
    found = figures_of([_answer(0)], [_fault("link-cut", at_s=9.99 + 0.1)])
    assert found["gap_ms"]["max"] == pytest.approx(700, abs=1)


def test_gap_of_two_faults_is_nobodys() -> None:
    found = figures_of([_answer(0)], [_fault(), _fault("stop", 1, at_s=10.2, lasts_s=3.0)])
    assert found["by_kind"]["kill"]["affected"] == 1
    assert found["gap_ms"]["max"] is None


def test_gateways_fault_hits_those_connected_to_it() -> None:
    moved = _answer(1, gateways=[(0, 10.0), (1, 10.4)])
    found = figures_of([_answer(0), moved], [_fault("gateway-kill", 0)])
    assert found["by_kind"]["gateway-kill"]["affected"] == 1


@pytest.mark.parametrize(
    "changes", [{"failure": "status 502"}, {"wrongs": ["id changes"]}, {"failure": "hung", "is_hung": True}]
)
def test_anything_that_is_not_whole_is_no_good(changes: dict[str, Any]) -> None:
    found = figures_of([_answer(0), _answer(1, **changes)], [_fault()])
    assert not is_good(found)
    assert found["failed"] + found["differing"] + found["hung"] == 1
    assert is_good(figures_of([_answer(0)], [_fault()]))


def test_answers_that_differ_are_counted_by_kind_of_request() -> None:
    wrong = {"wrongs": ["another text"]}
    answers = [_answer(0, kind="text-seeded", **wrong), _answer(1, kind="text-greedy")]
    answers += [_answer(2, kind="text-seeded", failure="hung", **wrong), _answer(3, kind="text-seeded", **wrong)]
    assert differing_kinds(answers) == {"text-seeded": 2}


def test_percentiles_are_values_that_were_seen() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(list(map(float, range(200))), 0.99) == 198.0
